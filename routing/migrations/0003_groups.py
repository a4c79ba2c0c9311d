from django.db import migrations

GROUPS = ("Viewer", "Operator")


def create_groups(apps, schema_editor):
    """Make the groups; `routing.permissions` gives them their rights once the permissions exist."""
    groups = apps.get_model("auth", "Group").objects.using(schema_editor.connection.alias)
    for name in GROUPS:
        groups.get_or_create(name=name)


class Migration(migrations.Migration):

    dependencies = [
        ("routing", "0002_keys_and_audit"),
        ("auth", "0012_alter_user_first_name_max_length"),
    ]

    operations = [
        # Left in place when undone: people may be in them.
        migrations.RunPython(create_groups, migrations.RunPython.noop),
    ]
