from django.urls import path

from routing import api

urlpatterns = [
    path("admin/transition", api.TransitionView.as_view(), name="transition"),
    path("admin/intent", api.IntentView.as_view(), name="intent"),
    path("admin/keys", api.KeysView.as_view(), name="keys"),
    path("admin/keys/<int:key_id>", api.KeyView.as_view(), name="key"),
]
