from threefold.config import ServerConfig
from threefold.flags.table import GROUPS
from threefold.flags.usage import usage


def test_all_flags_stand_under_their_headings() -> None:
    text = usage("threefold serve", "[MODEL] [flags]", GROUPS)
    assert text.startswith("usage: threefold serve [MODEL] [flags]\n\nServer:\n  --host ADDRESS")
    for heading, flags in GROUPS:
        assert f"\n{heading}:\n" in text
        for flag in flags:
            assert f"{'--[no-]' if flag.kind == 'switch' else '--'}{flag.name}" in text
    assert "Refused" not in text
    assert max(map(len, text.splitlines())) <= 118


def test_search_finds_names_help_and_refusals() -> None:
    text = usage("threefold serve", "", GROUPS, "prefix_caching")
    assert "--[no-]enable-prefix-caching" in text
    assert "--prefix-caching-hash-algo" in text.partition("Refused:")[2]
    assert "--host" not in text


def test_search_finds_short_spellings_and_nothing() -> None:
    assert "--tensor-parallel-size" in usage("x", "", GROUPS, "-tp")
    assert "has to do with 'xyzzy'" in usage("x", "", GROUPS, "xyzzy")
    assert usage("x", "", GROUPS, "all") == usage("x", "", GROUPS)


def test_defaults_are_those_of_the_configs() -> None:
    lines = usage("threefold serve", "", GROUPS).splitlines()
    shown = {line.split()[0]: line for line in lines if line.startswith("  --")}
    assert shown["--port"].endswith(f"({ServerConfig().port})")
    assert shown["--gpu-memory-utilization"].endswith("(0.9)")
    assert shown["--[no-]enable-prefix-caching"].endswith("(on)")
    assert shown["--[no-]enable-log-requests"].endswith("(off)")
    assert not shown["--[no-]disable-log-stats"].endswith(")"), "off would be said of the contrary"
    assert not shown["--uds"].endswith(")")
