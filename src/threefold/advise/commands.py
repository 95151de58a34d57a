"""`threefold profile`, `advise` and `tune`: from words to tables, a JSON file and an exit code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from threefold.advise.advise import Advice, Wishes, advise
from threefold.advise.facts import MachineFacts, read_facts
from threefold.advise.levers import Assumptions, Variant, base_variant, lever_variants
from threefold.advise.log import read_logs
from threefold.advise.logged import Log
from threefold.advise.options import (
    ADVISE_FLAGS,
    LOG_FLAGS,
    TUNE_ADVICE_FLAGS,
    TUNE_FLAGS,
    AdviseOptions,
    LogOptions,
    TuneOptions,
)
from threefold.advise.portrait import Portrait, draw_portrait
from threefold.advise.quality import read_quality
from threefold.advise.replay import NO_REPLAY, Replay, replay
from threefold.advise.tables import advice_lines, portrait_lines
from threefold.advise.targets import parse_targets
from threefold.advise.trace import Encoder, TokenizerLike, TraceRequest, to_trace
from threefold.advise.tune import tune
from threefold.advise.verify_command import check_verification, verified
from threefold.advise.verify_table import verification_lines, verification_markdown
from threefold.bench.machine import provenance
from threefold.bench.report import say, write_json, write_text
from threefold.config import EngineConfig
from threefold.errors import ConfigError
from threefold.flags.configs import engine_config, fill, parse_command
from threefold.flags.flag import Parsed
from threefold.flags.table import ENGINE_FLAGS, ENGINE_GROUPS, MODEL_FLAGS
from threefold.flags.usage import usage
from threefold.report.charts import check_html

_PROFILE_GROUPS = (("Log", LOG_FLAGS), ("Model, for its tokenizer", MODEL_FLAGS))


def run_profile(words: Sequence[str]) -> int:
    """`threefold profile LOG…`: what a load looks like.

    Raises:
        OperatorError: what was typed cannot hold, or no log can be read.
    """
    parsed = parse_command(words, LOG_FLAGS + MODEL_FLAGS)
    if parsed.help_word is not None:
        print(usage("threefold profile", "LOG... [flags]", _PROFILE_GROUPS, parsed.help_word))
        return 0
    asked = _log_options(parsed)
    log = read_logs(_paths(parsed.positionals, "profile LOG…"))
    config = engine_config(parsed)
    _, _, portrait = _portrait(log, open_tokenizer(config), asked, is_dummy=_is_dummy(config))
    _show(portrait_lines(portrait))
    _keep(asked, {**provenance(["profile", *words]), **portrait.to_dict()})
    return 0


def run_advise(words: Sequence[str]) -> int:
    """`threefold advise [MODEL] LOG…`: a verdict for every lever.

    Raises:
        OperatorError: what was typed cannot hold, no log can be read, or the model cannot be loaded.
    """
    parsed = parse_command(words, LOG_FLAGS + ADVISE_FLAGS + ENGINE_FLAGS)
    if parsed.help_word is not None:
        groups = (("Log", LOG_FLAGS), ("Advice", ADVISE_FLAGS), *ENGINE_GROUPS)
        print(usage("threefold advise", "[MODEL] LOG... [flags]", groups, parsed.help_word))
        return 0
    asked = _log_options(parsed)
    wanted = fill("advise", AdviseOptions(), parsed.assignments)
    check_verification(wanted)
    where = provenance(["advise", *words])
    case = _case(parsed, asked, wanted, "advise [MODEL] LOG…", is_run=wanted.is_verified)
    result = {**where, **case.figures()}
    _show(case.lines())
    if wanted.is_verified:
        cells = verified(case, wanted, say)
        result["verification"] = [cell.to_dict() for cell in cells]
        _show(["", *verification_lines(cells)])
        if wanted.markdown is not None:
            write_text(Path(wanted.markdown), verification_markdown(cells, result), "--markdown")
    _keep(asked, result)
    return 0


def run_tune(words: Sequence[str]) -> int:
    """`threefold tune [MODEL] LOG…`: advice, measured where it is open, written down for `serve --config`.

    Raises:
        OperatorError: as run_advise.
    """
    parsed = parse_command(words, LOG_FLAGS + ADVISE_FLAGS + TUNE_FLAGS + ENGINE_FLAGS)
    if parsed.help_word is not None:
        groups = (("Log", LOG_FLAGS), ("Advice", TUNE_ADVICE_FLAGS), ("Result", TUNE_FLAGS), *ENGINE_GROUPS)
        print(usage("threefold tune", "[MODEL] LOG... [flags]", groups, parsed.help_word))
        return 0
    asked = _log_options(parsed)
    wanted = fill("advise", AdviseOptions(), parsed.assignments)
    how = fill("tune", TuneOptions(), parsed.assignments)
    output = Path(how.output)
    if wanted.machine is not None:
        raise ConfigError("tune measures on the engine itself; leave --machine out")
    if wanted.is_verified:
        raise ConfigError("tune measures what is open by itself; --verify is for advise")
    check_verification(wanted)
    where = provenance(["tune", *words])
    case = _case(parsed, asked, wanted, "tune [MODEL] LOG…", is_run=True)
    (verifier,) = case.measured.loads
    tuned = tune(
        verifier, case.advice, base_variant(case.facts), case.levers, rounds=wanted.rounds,
        is_exhaustive=how.is_exhaustive, say=say,
    )  # fmt: skip
    header = [f"for {case.facts.model} on {case.facts.device}, by `threefold tune`"]
    write_text(output, tuned.yaml(header), "--output")
    _show([*case.lines(), *verification_lines(tuned.cells), *tuned.reasons, f"written: {output}"])
    _keep(asked, {**where, **case.figures(), "tuned": tuned.to_dict()})
    return 0


def _log_options(parsed: Parsed) -> LogOptions:
    asked = fill("log", LogOptions(), parsed.assignments)
    check_html(asked.html)
    return asked


def _keep(asked: LogOptions, result: dict[str, Any]) -> None:
    """Write the files that were asked for."""
    if asked.json is not None:
        write_json(Path(asked.json), result)
    if asked.html is not None:
        from threefold.report.build import write_result_page

        write_result_page(asked.html, result, include_text=asked.include_text)


@dataclass(frozen=True, slots=True)
class Case:
    """A log, a machine, and what is advised."""

    measured: Any
    """measured_forms.Measured; None when the machine came from a file."""
    facts: MachineFacts
    portrait: Portrait
    levers: list[Variant]
    advice: Advice

    def lines(self) -> list[str]:
        """For the terminal."""
        return [*portrait_lines(self.portrait), "", *advice_lines(self.advice)]

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        forms = self.measured.forms if self.measured is not None else {}
        return {
            "portrait": self.portrait.to_dict(),
            "facts": self.facts.to_dict(),
            "forms": {name: facts.to_dict() for name, facts in forms.items()},
            "advice": self.advice.to_dict(),
        }


def _case(parsed: Parsed, asked: LogOptions, wanted: AdviseOptions, form: str, *, is_run: bool) -> Case:
    """Read the log, measure the machine, judge every lever; is_run: the load itself is to be run."""
    targets = parse_targets(wanted.targets)
    quality = read_quality(wanted.quality)
    model, logs = _model_and_logs(parsed)
    log = read_logs(_paths(logs, form))
    config = engine_config(parsed, model)
    tokenizer = open_tokenizer(config)
    engine = _engine(wanted, config)
    if wanted.has_answers_made:
        from threefold.advise.answers import answer_all

        log = answer_all(log, engine.loaded(), Encoder(tokenizer), asked.output_tokens, say)
    trace, replayed, portrait = _portrait(log, tokenizer, asked, is_dummy=_is_dummy(config))
    measured, facts = _measured(engine, wanted, trace, replayed, is_run=is_run)
    assumed = Assumptions(wanted.draft_ratio, wanted.draft_acceptance)
    forms = measured.forms if measured is not None else {}
    wishes = Wishes(wanted.concurrency, targets, assumed, quality=quality, forms=forms)
    advice = advise(facts, trace, replayed, portrait, wishes, say=say)
    return Case(measured, facts, portrait, lever_variants(facts, replayed.propose_ms, assumed, forms), advice)


def _is_dummy(config: EngineConfig) -> bool:
    return config.model.load_format == "dummy"


def open_tokenizer(config: EngineConfig) -> TokenizerLike:
    """The tokenizer of the model, without its weights."""
    from threefold.models.checkpoint import open_checkpoint
    from threefold.models.locate import locate_model
    from threefold.text.tokenizer import Tokenizer

    if config.model.tokenizer is not None:
        return Tokenizer.from_path(Path(config.model.tokenizer))
    model = config.model
    checkpoint = open_checkpoint(locate_model(model.model, model.revision), model.load_format, model.seed)
    return Tokenizer.from_facts(checkpoint.plain_tokenizer_facts)


def _portrait(
    log: Log, tokenizer: TokenizerLike, asked: LogOptions, *, is_dummy: bool
) -> tuple[list[TraceRequest], Replay, Portrait]:
    trace = to_trace(log, Encoder(tokenizer), output_tokens=asked.output_tokens)
    replayed = NO_REPLAY if is_dummy else replay(trace)
    return trace, replayed, draw_portrait(log, trace, replayed, include_text=asked.include_text)


def _engine(wanted: AdviseOptions, config: EngineConfig) -> Any:
    """engine_measure.OneEngine; None where the machine comes from a file, so nothing that needs one may be asked."""
    if wanted.machine is None:
        from threefold.advise.engine_measure import OneEngine

        return OneEngine(config, wanted.awq_model)
    if wanted.has_answers_made or wanted.is_verified or wanted.is_reloading:
        raise ConfigError("--answer, --verify and --reload need the engine itself; leave --machine out")
    return None


def _measured(
    engine: Any, wanted: AdviseOptions, trace: list[TraceRequest], replayed: Replay, *, is_run: bool
) -> tuple[Any, MachineFacts]:
    """What was measured, and the machine's figures; from a file there is nothing but them."""
    if wanted.machine is not None:
        return None, read_facts(Path(wanted.machine))
    from threefold.advise.measured_forms import measure_forms

    measured = measure_forms(engine, wanted, trace, replayed, say, is_run=is_run)
    if wanted.save_machine is not None:
        write_json(Path(wanted.save_machine), measured.facts.to_dict())
    return measured, measured.facts


def _model_and_logs(parsed: Parsed) -> tuple[str | None, list[str]]:
    """The first word is the model when it is no log: a folder, a GGUF file, or no file at all."""
    words = parsed.positionals
    if words and (len(words) > 1 or Path(words[0]).is_dir()) and _is_model(words[0]):
        return words[0], words[1:]
    return None, words


def _is_model(word: str) -> bool:
    path = Path(word)
    return path.is_dir() or path.suffix == ".gguf" or not path.exists()


def _paths(words: Sequence[str], form: str) -> list[Path]:
    if not words:
        raise ConfigError(f"no log is given: threefold {form}; JSON lines with request and response, or a recording")
    return [Path(word) for word in words]


def _show(lines: Sequence[str]) -> None:
    print("\n".join(lines))
