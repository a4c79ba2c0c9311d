"""How the console writes moments: sortable, in 24 hours, and with the seconds that operators compare."""

DATETIME_FORMAT = "Y-m-d H:i:s"
DATE_FORMAT = "Y-m-d"
TIME_FORMAT = "H:i:s"
