"""Settings of the sample project: a shop on one machine. NOT for production: DEBUG is on and the key is public."""

import os

import django

from sample import server

BASE_DIR = server.BASE_DIR

# A sample, on localhost only: errors are shown in the browser, static files need no web server.
DEBUG = True
SECRET_KEY = "public, because this is a sample project"  # noqa: S105
ALLOWED_HOSTS: list[str] = []  # with DEBUG: localhost only

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_delayq",  # 1. the app ...
    "shop",
]

# 2. ... a Redis, by way of django-redis, beside the project's own cache ...
CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "delayq": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": server.url(),
    },
}

# 3. ... and its settings: the first, and what else does not fit by default.
DELAYQ = {
    "REDIS": "delayq",  # the alias in CACHES
    "PREFIX": "shop",  # every key in Redis begins with this: one for each project and database
    "QUEUES": ["default", "mail"],  # what schedules can choose; a worker serves all of them or some
    "SYNC_AFTER_MIGRATE": True,  # `migrate` brings what @periodic declares in shop/tasks.py into the database
    # Workers delete older runs, every hour; a schedule can say otherwise in its form, under "History".
    "HISTORY_DAYS": {"succeeded": 30, "skipped": 7, "failed": 365, "lost": 365},
    "DRAIN_SECONDS": 10,  # how long a worker that is told to stop lets running tasks finish
}

# What is enqueued, `confirm_order.enqueue(…)`, goes to the same workers.
TASKS = {
    "default": {"BACKEND": "django_delayq.backend.DelayQBackend", "QUEUES": ["default", "mail"]},
}

if "DATABASE_URL" in os.environ:
    import dj_database_url

    DATABASES = {"default": dj_database_url.config()}
else:
    DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "db.sqlite3"}}

# SQLite with several processes: writers queue up instead of failing, and readers never wait.
if DATABASES["default"]["ENGINE"] == "django.db.backends.sqlite3":
    DATABASES["default"].setdefault("OPTIONS", {}).update(
        transaction_mode="IMMEDIATE",
        timeout=20,
        init_command="PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    )

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
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
ROOT_URLCONF = "sample.urls"
WSGI_APPLICATION = "sample.wsgi.application"
STATIC_URL = "static/"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LANGUAGE_CODE = "en-us"
USE_TZ = True
TIME_ZONE = "UTC"

# Mails become files that can be looked at.
MAIL_PATH = BASE_DIR / "mails"
DEFAULT_FROM_EMAIL = "The sample shop <shop@example.org>"
if django.VERSION >= (6, 1):
    MAILERS = {
        "default": {
            "BACKEND": "django.core.mail.backends.filebased.EmailBackend",
            "OPTIONS": {"file_path": MAIL_PATH},
        }
    }
else:
    EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
    EMAIL_FILE_PATH = MAIL_PATH

# What the tasks log, beside the worker's own lines.
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "format": "{asctime}.{msecs:03.0f} {levelname:<7} {message}",
            "datefmt": "%Y-%m-%d %H:%M:%S",
            "style": "{",
        }
    },
    "handlers": {"stdout": {"class": "logging.StreamHandler", "stream": "ext://sys.stdout", "formatter": "line"}},
    "loggers": {"shop": {"handlers": ["stdout"], "level": "INFO"}},
}
