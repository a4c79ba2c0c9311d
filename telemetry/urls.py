"""Paths below ``/v1/``. ``GET /metrics`` stands at the root, where scrapers look for it."""

from django.urls import path

from telemetry import api

urlpatterns = [
    path("decisions", api.DecisionsView.as_view(), name="decisions"),
    path("requests/<str:request_id>", api.RequestView.as_view(), name="request"),
    path("stats", api.StatsView.as_view(), name="stats"),
    path("models/capacity", api.CapacityView.as_view(), name="capacity"),
    path("models/capabilities", api.CapabilitiesView.as_view(), name="capabilities"),
    path("models/fingerprints", api.FingerprintsView.as_view(), name="fingerprints"),
    path("health/tiers", api.HealthView.as_view(), name="health-tiers"),
    path("router/status", api.StatusView.as_view(), name="router-status"),
    path("admin/explain", api.ExplainView.as_view(), name="explain"),
]
