import pytest

from threefold.errors import ConfigError
from threefold.report.parts import parts_of, read_parts


def kinds(result) -> list[str]:
    return [part.kind for part in parts_of(result, "x.json")]


def test_what_a_file_is_is_told_from_what_it_holds(
    make_serve, make_envelope, make_ladder, make_comparison, make_step_load, make_steps, portrait_result, advise_result
):
    assert kinds(make_serve()) == ["serve"]
    assert kinds(make_envelope()) == ["envelope"]
    assert kinds(make_ladder()) == ["ladder"]
    assert kinds(make_comparison()) == ["comparison"]
    assert kinds(make_step_load()) == ["step-load"]
    assert kinds(make_steps()) == ["steps"]
    assert kinds(portrait_result) == ["portrait"]
    assert kinds(advise_result) == ["advice", "tuned", "verification", "verification", "portrait"]


def test_a_sweep_is_its_runs(make_serve):
    sweep = {**make_serve(), "benchmark": "sweep", "runs": [make_serve(1), make_serve(2)]}
    assert kinds(sweep) == ["serve", "serve"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "is no result that a report can show"),
        ('{"benchmark": "sweep", "runs": 3}', "is damaged"),
        ('{"benchmark": "step-load", "steps": []}', "is no result that a report can show"),
        ('{"model": "a machine", "device": "d", "curve": {}}', "is no result"),
        ("[1]", "wants a JSON object, got a list"),
        ("{", "is no JSON"),
        ("", "is no JSON"),
        ('{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_other_files_are_named_in_one_line(save, content, said):
    path = save(content)
    with pytest.raises(ConfigError, match=said) as caught:
        read_parts([path_of(path)])
    assert str(caught.value).startswith(path)
    assert "\n" not in str(caught.value)


def test_a_picture_is_no_result(tmp_path):
    path = tmp_path / "x.png"
    path.write_bytes(b"\x89PNG\xff")
    with pytest.raises(ConfigError, match=r"is no UTF-8 text"):
        read_parts([path])


def path_of(text: str):
    from pathlib import Path

    return Path(text)
