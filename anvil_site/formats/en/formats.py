"""How the console writes moments: sortable, in 24 hours, with seconds, and with the zone."""

DATETIME_FORMAT = "Y-m-d H:i:s e"
DATE_FORMAT = "Y-m-d"
TIME_FORMAT = "H:i:s"
