from django.urls import path

from routing import api

urlpatterns = [
    path("admin/transition", api.TransitionView.as_view(), name="transition"),
]
