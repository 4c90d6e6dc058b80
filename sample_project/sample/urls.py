"""The addresses of the sample project."""

from django.contrib import admin
from django.urls import path
from shop.views import home

urlpatterns = [
    path("", home, name="home"),
    path("admin/", admin.site.urls),
]
