"use strict";
SwaggerUIBundle({
  url: document.getElementById("api").dataset.schema,
  dom_id: "#api",
  presets: [SwaggerUIBundle.presets.apis],
  layout: "BaseLayout",
  deepLinking: true,
  persistAuthorization: false,
  validatorUrl: null,
});
