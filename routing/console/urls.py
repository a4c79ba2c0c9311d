from django.urls import path

from routing.console import actions, configuration, guide, overview, promotions, runbook

app_name = "console"
urlpatterns = [
    path("fleet/", overview.fleet, name="fleet"),
    path("fleet/live", overview.fleet_live, name="fleet-live"),
    path("fleet/scopes/", actions.scopes, name="scopes"),
    path("fleet/scopes/live", actions.scopes_live, name="scopes-live"),
    path("fleet/leases/live", actions.leases_live, name="leases-live"),
    path("fleet/quiesce/", actions.quiesce, name="quiesce"),
    path("fleet/drain/", actions.drain, name="drain"),
    path("fleet/readmit/", actions.readmit, name="readmit"),
    path("fleet/guide/", guide.guide, name="guide"),
    path("fleet/runbook/", runbook.show, name="runbook"),
    path("configuration/", configuration.overview, name="configuration"),
    path("configuration/import/", configuration.import_documents, name="import"),
    path("configuration/publish/", configuration.publish, name="publish"),
    path("configuration/demo/", configuration.demo, name="demo"),
    path("configuration/activation/", configuration.activation_page, name="activation"),
    path("configuration/activation/live", configuration.activation_live, name="activation-live"),
    path("configuration/promotions/", promotions.promotions, name="promotions"),
    path("configuration/promotions/live", promotions.promotions_live, name="promotions-live"),
    path("configuration/promotions/new/", promotions.promote, name="promote"),
    path("configuration/promotions/again/", promotions.again, name="promote-again"),
    path("configuration/snapshots/<int:snapshot_id>/", configuration.snapshot, name="snapshot"),
    path("configuration/snapshots/<int:snapshot_id>/activate/", configuration.activate, name="activate"),
    path("configuration/snapshots/<int:snapshot_id>/load/", configuration.load, name="load"),
    *(
        path(
            f"configuration/snapshots/<int:snapshot_id>/{name}.toml",
            configuration.document,
            {"name": name},
            name=f"{name}-document",
        )
        for name in ("config", "topology", "overlay")
    ),
]
