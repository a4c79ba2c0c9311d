// The Vercel AI SDK's OpenAI-compatible provider: node vercel.mjs BASE_URL TOKEN MODEL CLIENTS_DIRECTORY
// Prints one JSON object: what each call gave.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [baseURL, apiKey, model, directory] = process.argv.slice(2);
const require = createRequire(pathToFileURL(`${directory}/package.json`));
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { createOpenAICompatible } = await load("@ai-sdk/openai-compatible");
const { generateText, isStepCount, Output, streamText, tool } = await load("ai");
const { z } = await load("zod");

const provider = createOpenAICompatible({
  name: "anvil",
  baseURL,
  apiKey,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const chat = { model: provider(model), maxRetries: 0 };
const trip = z.object({ city: z.string(), days: z.number().int() });
const seen = {};

const plain = await generateText({ ...chat, prompt: "hi" });
seen.plain = { text: plain.text, finish: plain.finishReason, usage: plain.usage.outputTokens };

const streamed = streamText({ ...chat, prompt: "hi" });
let text = "";
for await (const piece of streamed.textStream) text += piece;
seen.streamed = { text, finish: await streamed.finishReason, usage: (await streamed.usage).outputTokens };

const called = [];
const tells = (name, answer) =>
  tool({
    description: "Tells.",
    inputSchema: trip,
    execute: async (input) => {
      called.push([name, input]);
      return answer;
    },
  });
const tools = { get_weather: tells("get_weather", "rain"), get_time: tells("get_time", "noon") };
const asked = { ...chat, tools, stopWhen: isStepCount(2), prompt: "Ask get_weather and get_time." };
const round = await generateText(asked);
seen.round = { text: round.text, called: called.splice(0) };

const streamedRound = streamText(asked);
await streamedRound.consumeStream();
seen.streamedRound = { text: await streamedRound.text, called: called.splice(0) };

const structured = await generateText({ ...chat, output: Output.object({ schema: trip }), prompt: "hi" });
seen.structured = structured.output;

const image = { type: "file", mediaType: "image/png", data: process.env.PNG };
const content = [{ type: "text", text: "see" }, image];
const shown = await generateText({ ...chat, messages: [{ role: "user", content }] });
seen.image = shown.usage.inputTokens;

try {
  await generateText({ ...chat, model: provider("nobody"), prompt: "hi" });
} catch (error) {
  seen.unknown = { status: error.statusCode, message: error.message, retryable: error.isRetryable };
}

const controller = new AbortController();
const left = streamText({ ...chat, prompt: "hi", abortSignal: controller.signal, onError: () => {} });
const parts = [];
for await (const part of left.fullStream) {
  parts.push(part.type);
  if (part.type === "text-delta") controller.abort();
}
seen.aborted = parts.at(-1);

console.log(JSON.stringify(seen));
