from django.urls import path

from telemetry import console

app_name = "evidence"
urlpatterns = [path("explain/", console.explain, name="explain")]
