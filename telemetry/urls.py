from django.urls import path

from telemetry import api

urlpatterns = [
    path("decisions", api.DecisionsView.as_view(), name="decisions"),
    path("requests/<str:request_id>", api.RequestView.as_view(), name="request"),
]
