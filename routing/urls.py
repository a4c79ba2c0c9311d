from django.urls import path

from routing import api, promotions_api, snapshots_api

urlpatterns = [
    path("admin/transition", api.TransitionView.as_view(), name="transition"),
    path("admin/intent", api.IntentView.as_view(), name="intent"),
    path("admin/snapshots", snapshots_api.SnapshotsView.as_view(), name="snapshots"),
    path("admin/snapshots/<int:snapshot_id>", snapshots_api.SnapshotView.as_view(), name="snapshot"),
    path(
        "admin/snapshots/<int:snapshot_id>/activate",
        snapshots_api.ActivateView.as_view(),
        name="activate-snapshot",
    ),
    path("admin/promotions", promotions_api.PromotionsView.as_view(), name="promotions"),
    path("admin/keys", api.KeysView.as_view(), name="keys"),
    path("admin/keys/<int:key_id>", api.KeyView.as_view(), name="key"),
]
