"""The command line's grammar and its one table of flags. Knows configs, but no engine, so that `--help` is instant.

flag.py        what a flag is
values.py      text to values
targets.py     latency targets
table.py       the flags that work here, and the ones accepted without effect
elsewhere.py   the flags of other engines, refused by name with the reason
grammar.py     words to assignments
yaml_file.py   `--config FILE.yaml` to assignments
loose_json.py  JSON, also when the shell has eaten its quotes
speculation.py the speculative-config block
configs.py     assignments to configs
usage.py       `--help` and `--help=WORD`
"""
