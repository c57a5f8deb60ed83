"""The checker that the import hook puts on every function of shoal: an int may stand for a float,
as for the static checker."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
