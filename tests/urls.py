"""The admin, for the tests."""

from django.conf import settings
from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls)]
if settings.THEME == "grappelli":
    urlpatterns.append(path("grappelli/", include("grappelli.urls")))
