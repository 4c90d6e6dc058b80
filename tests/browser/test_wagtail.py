"""Wagtail's menu leads to our page, for whoever may see it. In a process of its own, as Wagtail brings many apps."""

import subprocess
import sys
import textwrap

PROJECT = """
    import django
    from django.conf import settings
    from django.urls import path, include

    settings.configure(
        SECRET_KEY="x" * 50, ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], USE_TZ=True, STATIC_URL="/static/",
        WAGTAIL_SITE_NAME="site", WAGTAILADMIN_BASE_URL="http://localhost", DELAYQ={"MIRROR": False},
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=[
            "wagtail.users", "wagtail.snippets", "wagtail.documents", "wagtail.images", "wagtail.search",
            "wagtail.admin", "wagtail", "modelcluster", "taggit", "django.contrib.admin", "django.contrib.auth",
            "django.contrib.contenttypes", "django.contrib.sessions", "django.contrib.messages",
            "django.contrib.staticfiles", "django_delayq",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
            "django.contrib.messages.middleware.MessageMiddleware",
        ],
        TEMPLATES=[{
            "BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
            "OPTIONS": {"context_processors": [
                "django.template.context_processors.request", "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]},
        }],
    )
    django.setup()
    from django.contrib import admin
    from django.contrib.auth.models import Permission, User
    from django.core.management import call_command
    from django.test import Client
    from wagtail.admin import urls

    urlpatterns = [path("django-admin/", admin.site.urls), path("cms/", include(urls))]
    call_command("migrate", verbosity=0)
    for name, codes in (("may", ["access_admin", "view_schedule"]), ("not", ["access_admin"])):
        user = User.objects.create_user(name)
        user.user_permissions.set(Permission.objects.filter(codename__in=codes))
        client = Client()
        client.force_login(user)
        page = client.get("/cms/").content.decode()
        print(name, "/django-admin/django_delayq/overview/" in page)
"""


def test_wagtails_menu_leads_to_at_a_glance(tmp_path):
    script = tmp_path / "project.py"
    script.write_text(textwrap.dedent(PROJECT))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["may True", "not False"], done.stderr
