"""`threefold ladder`: from words to a table, a JSON file and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from threefold.advise.ladder import climb
from threefold.advise.options import LADDER_FLAGS, LadderOptions
from threefold.advise.tables import ladder_lines
from threefold.bench.machine import provenance
from threefold.bench.report import say, write_json
from threefold.errors import ConfigError
from threefold.flags.configs import engine_config, fill, parse_command
from threefold.flags.table import ENGINE_FLAGS, ENGINE_GROUPS
from threefold.flags.usage import usage
from threefold.report.charts import check_html

_GROUPS = (("Ladder", LADDER_FLAGS), *ENGINE_GROUPS)
NO_QUANTISED_COPY = "it needs a quantised copy of the model beside this one; serve both and compare them"


def run_ladder(words: Sequence[str]) -> int:
    """`threefold ladder [MODEL]`: one at a time, batches, continuous batching, prefix cache, speculation.

    Raises:
        OperatorError: what was typed cannot hold, or the model cannot be loaded.
    """
    parsed = parse_command(words, LADDER_FLAGS + ENGINE_FLAGS)
    if parsed.help_word is not None:
        print(usage("threefold ladder", "[MODEL] [flags]", _GROUPS, parsed.help_word))
        return 0
    if len(parsed.positionals) > 1:
        raise ConfigError(f"ladder climbs with one MODEL, got {len(parsed.positionals)}")
    asked = fill("ladder", LadderOptions(), parsed.assignments)
    check_html(asked.html)
    config = engine_config(parsed, parsed.positionals[0] if parsed.positionals else None)
    if not config.speculation.is_enabled:
        raise ConfigError("the ladder ends with speculation; leave --no-speculation out")
    from threefold.advise.ladder_run import EngineRungs, demonstration
    from threefold.advise.trace import Encoder
    from threefold.engine.build import load_engine, make_tokenizer

    loaded = load_engine(config)
    rungs = EngineRungs(loaded)
    loads = demonstration(Encoder(make_tokenizer(loaded.info())), asked.max_tokens)
    users = sorted({min(count, rungs.most_users) for count in asked.users})
    result = climb(rungs, loads, users, budget_s=asked.budget_s, why_no_quantisation=NO_QUANTISED_COPY, say=say)
    print("\n".join(ladder_lines(result)))
    kept = {**provenance(["ladder", *words]), **result.to_dict()}
    if asked.json is not None:
        write_json(Path(asked.json), kept)
    if asked.html is not None:
        from threefold.report.build import write_result_page

        write_result_page(asked.html, kept)
    return 0 if result.ladders else 1
