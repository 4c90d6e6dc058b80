"""Settings of the test suite. The Redis URL and the database come from the environment; see tests/conftest.py."""

import json
import os
import tempfile
from pathlib import Path

import dj_database_url
import django

SECRET_KEY = "only for tests"
DEBUG = False
ALLOWED_HOSTS = ["*"]
USE_TZ = os.environ.get("DELAYQ_TEST_USE_TZ", "1") == "1"
TIME_ZONE = "UTC"
ROOT_URLCONF = "tests.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_delayq",
    "tests.app",
    "tests.testing",
    "tests.faults",
    "tests.jobs",
]
MIDDLEWARE = [
    "tests.browser.policy.strict",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
# Another admin's looks: unfold, jazzmin or grappelli, which need more than the strict policy allows.
THEME = os.environ.get("DELAYQ_TEST_THEME", "")
if THEME:
    INSTALLED_APPS.insert(0, THEME)
    MIDDLEWARE.remove("tests.browser.policy.strict")
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
STATIC_URL = "/static/"

# A file, not memory: worker processes of the tests open the same database.
SCRATCH = Path(os.environ.get("DELAYQ_TEST_SCRATCH") or tempfile.mkdtemp(prefix="delayq-tests-"))
SCRATCH.mkdir(parents=True, exist_ok=True)
if "DATABASE_URL" in os.environ:
    DATABASES = {"default": dj_database_url.config()}
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(SCRATCH / "db.sqlite3"),
            "OPTIONS": {
                "timeout": float(os.environ.get("DELAYQ_TEST_LOCK_SECONDS", "20")),
                "transaction_mode": "IMMEDIATE",
                # NORMAL waits for the disk at the end of each test that commits, for a loss of power that no test has.
                "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
            },
            "TEST": {"NAME": str(SCRATCH / "test.sqlite3")},
        }
    }
# Worker processes of the tests work on the test database, whose name only the test run knows.
if "DELAYQ_TEST_DATABASE" in os.environ:
    DATABASES["default"]["NAME"] = os.environ["DELAYQ_TEST_DATABASE"]

# Worker processes of another release: see tests/acceptance/test_layouts.py.
if "DELAYQ_TEST_LAYOUT" in os.environ:
    from django_delayq import conf

    conf.LAYOUT = int(os.environ["DELAYQ_TEST_LAYOUT"])

CACHES = {
    "default": {
        "BACKEND": "django_redis.cache.RedisCache",
        "LOCATION": os.environ.get("DELAYQ_REDIS_URL", "redis://127.0.0.1:1/0"),
        "OPTIONS": json.loads(os.environ.get("DELAYQ_TEST_CACHE_OPTIONS", "{}")),
    },
    "local": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
}
DELAYQ = {
    "REDIS_IN_TESTS": True,
    "PREFIX": os.environ.get("DELAYQ_TEST_PREFIX", "delayq-test"),
    "QUEUES": ["default", "mail"],
    **json.loads(os.environ.get("DELAYQ_TEST_OPTIONS", "{}")),
}
TASKS = {
    "default": {"BACKEND": "django_delayq.backend.DelayQBackend", "QUEUES": ["default", "mail"]},
    "second": {"BACKEND": "django_delayq.backend.DelayQBackend", "QUEUES": ["default", "mail"]},
}

# Mail of worker processes becomes files in this folder.
if "DELAYQ_TEST_MAIL" in os.environ:
    FILES = "django.core.mail.backends.filebased.EmailBackend"
    EMAIL_BACKEND, EMAIL_FILE_PATH = FILES, os.environ["DELAYQ_TEST_MAIL"]
    if django.VERSION >= (6, 1):
        del EMAIL_BACKEND, EMAIL_FILE_PATH
        MAILERS = {"default": {"BACKEND": FILES, "OPTIONS": {"file_path": os.environ["DELAYQ_TEST_MAIL"]}}}
