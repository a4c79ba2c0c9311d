"""Environment -> Django settings: the one place where the process environment is read into Django.

Everything Anvil itself needs besides (bind address, limits, switches) is read here too and named
``ANVIL_*``, so that ``anvil_site.runtime`` and the views take typed values and never parse the environment.
"""

import os
import secrets
from pathlib import Path

import dj_database_url
from csp.constants import NONE, SELF
from environs import Env, EnvError, validate

from anvil_site.incoming import BODY_MIN_RATE, BODY_SILENCE
from routing.access import is_loopback_bind

# Whatever a process with these settings writes (database, its journal, decision log) is its owner's alone.
os.umask(0o077)

env = Env()

BASE_DIR = Path(__file__).resolve().parent.parent

ANVIL_DATA: Path = env.path("ANVIL_DATA", Path.cwd() / "var").resolve()
"""The data directory: database, ledger lock, secret key, decision log. Nothing is written outside it."""

ANVIL_BIND: str = env.str("ANVIL_BIND", "127.0.0.1:8000")
ANVIL_AUTH: bool = env.str("ANVIL_AUTH", "on", validate=validate.OneOf(["on", "off"])) == "on"
"""Off only for a loopback bind; checked at start and fixed for the life of the process."""

ANVIL_MAX_BODY_BYTES: int = env.int(
    "ANVIL_MAX_BODY_BYTES", 32 * 1024 * 1024, validate=validate.Range(1024, 1024**3)
)
ANVIL_MAX_CONCURRENCY: int = env.int("ANVIL_MAX_CONCURRENCY", 512, validate=validate.Range(1, 16_384))
ANVIL_BODY_BUDGET: int = env.int(
    "ANVIL_BODY_BUDGET", 512 * 1024 * 1024, validate=validate.Range(1024, 1024**4)
)
ANVIL_BODY_SILENCE: float = env.float("ANVIL_BODY_SILENCE", BODY_SILENCE, validate=validate.Range(0.1, 3600))
ANVIL_BODY_MIN_RATE: int = env.int(
    "ANVIL_BODY_MIN_RATE", BODY_MIN_RATE, validate=validate.Range(1, 1024 * 1024)
)
"""A body that is silent for longer, or comes more slowly on average, is refused with 408."""

ANVIL_DECISION_RETENTION: int = env.int(
    "ANVIL_DECISION_RETENTION", 100_000, validate=validate.Range(1, 100_000_000)
)
"""Rows of the decision table; the oldest go first."""

ANVIL_CONFIG: Path | None = env.path("ANVIL_CONFIG", None)
ANVIL_TOPOLOGY: Path | None = env.path("ANVIL_TOPOLOGY", None)
ANVIL_TOPOLOGY_OVERLAY: Path | None = env.path("ANVIL_TOPOLOGY_OVERLAY", None)


def _secret_key() -> str:
    """The environment's key, else the data directory's own, made once and readable by its owner alone."""
    given: str = env.str("ANVIL_SECRET_KEY", "")
    if given:
        return given
    path = ANVIL_DATA / "secret_key"
    ANVIL_DATA.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text().strip()
    key = secrets.token_urlsafe(48)
    with open(fd, "w") as file:
        file.write(key)
    return key


SECRET_KEY = _secret_key()
DEBUG = env.bool("ANVIL_DEBUG", False)
MACHINE_HOST = "anvil.invalid"
"""The host under which API requests are handled, whatever name the caller used; nobody can resolve it."""

ALLOWED_HOSTS: list[str] = [
    *env.list("ANVIL_ALLOWED_HOSTS", ["127.0.0.1", "localhost", "[::1]"]),
    MACHINE_HOST,
]
CSRF_TRUSTED_ORIGINS: list[str] = env.list("ANVIL_TRUSTED_ORIGINS", [])

# Security. TLS, HSTS and the redirect to https are the reverse proxy's.

_IS_PUBLIC = not is_loopback_bind(ANVIL_BIND)
_BEHIND_TLS = any(origin.startswith("https://") for origin in CSRF_TRUSTED_ORIGINS)
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = env.bool("ANVIL_SECURE_COOKIES", _IS_PUBLIC or _BEHIND_TLS)
"""Browsers then send them over https alone. Off on a loopback bind that no https origin is in front of."""

CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_AGE = 12 * 60 * 60
X_FRAME_OPTIONS = "DENY"
SECURE_REFERRER_POLICY = "same-origin"
SILENCED_SYSTEM_CHECKS = ["security.W004", "security.W008"]

CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [NONE],
        "script-src": [SELF],
        "style-src": [SELF],
        # Style sheets carry small pictures inside.
        "img-src": [SELF, "data:"],
        "font-src": [SELF],
        "connect-src": [SELF],
        "form-action": [SELF],
        "base-uri": [NONE],
        "frame-ancestors": [NONE],
        "object-src": [NONE],
    }
}

INSTALLED_APPS = [
    "anvil_site.apps.ConsoleAdminConfig",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_htmx",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "admission",
    "routing",
    "telemetry",
    "anvil_site",
]

MIDDLEWARE = [
    # First, so that the data plane never sees sessions, CSRF or Django's authentication.
    "anvil_site.middleware.DataPlaneMiddleware",
    "anvil_site.middleware.MachineHostMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "anvil_site.urls"
WSGI_APPLICATION = "anvil_site.wsgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

try:
    _database = dj_database_url.parse(
        env.str("DATABASE_URL", f"sqlite:///{ANVIL_DATA / 'anvil.sqlite3'}"), conn_health_checks=True
    )
except ValueError:
    # Neither its text nor its cause: the URL may hold a password.
    raise EnvError('Environment variable "DATABASE_URL" invalid: not a database URL.') from None
DATABASES = {"default": _database}
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["default"]["OPTIONS"] = {
        "timeout": 5,
        "transaction_mode": "IMMEDIATE",
        # FULL: an operator's quiesce must survive a power cut.
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
    }
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in ("UserAttributeSimilarityValidator", "MinimumLengthValidator", "CommonPasswordValidator")
]
LOGIN_URL = "admin:login"
LOGIN_REDIRECT_URL = "console:fleet"

LANGUAGE_CODE = "en-gb"
TIME_ZONE = "UTC"
USE_I18N = False
FORMAT_MODULE_PATH = ["anvil_site.formats"]
USE_TZ = True

STATIC_URL = "static/"
# Served from the packages themselves: no collectstatic step between a checkout and a working console.
WHITENOISE_USE_FINDERS = True

REST_FRAMEWORK = {
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_AUTHENTICATION_CLASSES": ["routing.authentication.BearerAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["routing.authentication.HasScope"],
    "EXCEPTION_HANDLER": "routing.api.exception_handler",
    "UNAUTHENTICATED_USER": None,
    # "format" is a query parameter as unknown as any other; who wants YAML of the schema accepts it.
    "URL_FORMAT_OVERRIDE": None,
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
}

SPECTACULAR_SETTINGS = {
    "TITLE": "Anvil",
    "DESCRIPTION": "The control plane and its evidence. Inference speaks the wires of its vendors.",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SCHEMA_PATH_PREFIX": "/v1",
    "SERVE_INCLUDE_SCHEMA": False,
    "POSTPROCESSING_HOOKS": ["anvil_site.openapi.add_components"],
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {levelname} {name} {message}", "style": "{"}},
    "filters": {
        # What strangers can provoke is one line each.
        "short": {
            "()": "django.utils.log.CallbackFilter",
            "callback": lambda record: record.__dict__.update(exc_info=None) is None,
        },
        "raised": {
            "()": "django.utils.log.CallbackFilter",
            "callback": lambda record: record.exc_info is not None,
        },
    },
    # Nobody writes to stderr but this handler's own thread: a pipe that is not read must stop no request.
    "handlers": {"stderr": {"class": "telemetry.log_handler.BoundedStreamHandler", "formatter": "line"}},
    "root": {"handlers": ["stderr"], "level": "WARNING"},
    "loggers": {
        "anvil": {"level": env.str("ANVIL_LOG_LEVEL", "INFO")},
        "django": {"level": "WARNING"},
        "django.security.DisallowedHost": {"filters": ["short"]},
        "gunicorn.error": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        # An answer that refuses is told by who refused; what is left is what went wrong here.
        "django.request": {"filters": ["raised"]},
    },
}
