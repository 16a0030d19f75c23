"""Evaluators beside training, `seedpod eval`, and what both record."""

from __future__ import annotations

import json
import math
import pathlib
import shutil
import subprocess

from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.e2e import runs


def gifs(folder: pathlib.Path) -> list[Image.Image]:
    return [Image.open(path) for path in sorted(folder.glob("*.gif"))]


def test_an_evaluator_beside_training_and_an_evaluation_of_its_checkpoint(
    tmp_path: pathlib.Path,
) -> None:
    process = runs.start(
        tmp_path / "runs",
        "football",
        *("--frames=100000000", "--set=actor.workers=1", "--set=local.evaluation_environments=2"),
        *("--set=learner.evaluation.episodes=4", "--set=actor.recording.every_episodes=2"),
        "--set=actor.recording.max_frames=20",
    )
    folder = runs.folder(tmp_path / "runs")
    for pattern in ("evaluations.jsonl", "videos/*.gif", "videos/*.png"):
        runs.wait_for(lambda p=pattern: list(folder.glob(p)), pattern, 300)  # type: ignore[misc]
    assert runs.interrupt(process, group=False) < 60
    summary = runs.finish(process)
    # Nothing of the evaluator is among the steps that training has to account for.
    assert summary["steps"]["error"] == 0
    assert "2 slots from 1022 on, for EVALUATION" in (folder / "learner.log").read_text()
    told = summary["evaluation"]["values"]
    assert sum(told[name]["mean"] for name in ("win", "draw", "loss")) == 1
    lines = [json.loads(line) for line in (folder / "evaluations.jsonl").read_text().splitlines()]
    assert lines[0]["episodes"] == 4
    assert lines[0]["levels"]["academy_empty_goal_close"]["episodes"] == 4
    recorded = gifs(folder / "videos")
    assert all(1 < image.n_frames <= 20 for image in recorded)  # type: ignore[attr-defined]
    assert (folder / "videos" / "evaluator-heat-map.png").exists()
    accumulator = EventAccumulator(str(folder / "tensorboard"), {"tensors": 0})
    accumulator.Reload()
    width, height, data = accumulator.Tensors("evaluation/episode")[0].tensor_proto.string_val
    assert (int(width), int(height), data[:6]) == (840, 440, b"GIF89a")
    assert runs.scalars(summary["run"], "evaluation/goal_difference")

    video, result = tmp_path / "video", tmp_path / "result.json"
    moved = shutil.move(summary["checkpoint"], tmp_path / "a good one")
    evaluated = runs.evaluate(
        str(moved),
        *("--episodes=8", "--greedy", f"--video={video}", "--video-episodes=2"),
        f"--json={result}",
        timeout=600,
    )
    assert json.loads(result.read_text()) == evaluated
    assert evaluated["greedy"] is True
    assert evaluated["episodes"] == 8  # one of each slot
    assert evaluated["levels"].keys() == {"academy_empty_goal_close"}
    assert sorted(map(str, video.glob("*.gif"))) == [
        name for name in sorted(evaluated["recordings"]) if name.endswith(".gif")
    ]
    frames = [image.n_frames for image in gifs(video)]  # type: ignore[attr-defined]
    assert len(frames) == 2
    assert all(n > 1 for n in frames)

    # What does not fit is refused with both named.
    command = [*runs.SEEDPOD, "eval", f"--checkpoint={moved}"]
    refused = subprocess.run(
        [*command, "--set=actor.environment=CartPole-v1", "--set=actor.environment_arguments={}"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert refused.returncode == 1
    assert "(CartPole-v1()) look like" in refused.stderr
    assert "(football(scenario=academy_empty_goal_close, representation=" in refused.stderr


def test_an_evaluation_agrees_with_the_evaluator_beside_training(tmp_path: pathlib.Path) -> None:
    """A recurrent agent that learns nothing; the environments' cues come in turn.

    So both means are over the same cues, and what is left of chance is far below the standard
    error, which says how far two samples of the returns would lie apart.
    """
    summary = runs.train(
        tmp_path,
        "memory",
        *("--frames=40000", "--set=learner.optimizer.learning_rate=0"),
        "--set=actor.environment=tests.e2e.environments:CyclingMemory",
        *("--set=local.evaluation_environments=8", "--set=learner.evaluation.greedy=true"),
        "--set=learner.evaluation.episodes=160",
    )
    beside = summary["evaluation"]
    assert beside["episodes"] == 160
    evaluated = runs.evaluate(summary["checkpoint"], "--episodes=160", "--greedy")
    assert evaluated["episodes"] == 160
    error = math.hypot(beside["standard_error"], evaluated["standard_error"])
    assert error > 0
    assert abs(beside["mean_return"] - evaluated["mean_return"]) <= 2 * error
    assert beside["mean_length"] == evaluated["mean_length"] == 22

    # Stopped before it was up, it has played nothing.
    process = runs.start_evaluation(tmp_path, summary["checkpoint"])
    runs.wait_for(lambda: runs.descendants(process.pid, "services.learner"), "the learner")
    assert runs.interrupt(process, group=True) < 30
    stopped = runs.finish(process)
    assert (stopped["episodes"], stopped["failure"]) == (0, None)

    # Later, it tells of what it has played: equally many episodes of each environment.
    process = runs.start_evaluation(tmp_path, summary["checkpoint"], "--episodes=1000000")
    runs.wait_for(lambda: runs.status(process).evaluation_episodes > 100, "100 episodes")
    assert runs.interrupt(process, group=True) < 30
    stopped = runs.finish(process)
    assert stopped["episodes"] > 50
    assert stopped["episodes"] % 16 == 0
    assert stopped["failure"] is None
    assert runs.processes(tmp_path) == {}
