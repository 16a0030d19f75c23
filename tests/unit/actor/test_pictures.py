"""What recordings show: places, lengths and colors computed by hand."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from services.actor.environments.base import (
    Decision,
    Environment,
    Observation,
    PictureError,
    Positions,
    Transition,
)
from services.actor.environments.football import pitch
from services.actor.environments.football.game import View
from services.actor.pictures import panel
from services.actor.pictures.camera import Camera
from services.actor.pictures.canvas import Picture
from services.actor.pictures.gif import GifWriter
from services.actor.pictures.heat_map import HeatMap
from services.shared.config import RecordingConfig
from services.shared.generated.seedpod.inference.v1 import inference_pb2
from services.shared.specs import (
    ContinuousActionSpec,
    DataType,
    DiscreteActionSpec,
    EnvironmentSpec,
    TensorSpec,
)

PROBABILITIES = inference_pb2.POLICY_KIND_PROBABILITIES


def view(**changes: Any) -> View:
    values: dict[str, Any] = {
        "left_team": [-1.0, 0.0, 0.5, -0.21],
        "left_direction": [0.0] * 4,
        "left_tired": [0.0] * 2,
        "right_team": [0.75, 0.21],
        "right_direction": [0.0] * 2,
        "right_tired": [0.0],
        "ball": [0.25, 0.1, 0.0],
        "ball_direction": [0.0] * 3,
        "ball_owned_team": -1,
        "ball_owned_player": -1,
        "active": [1],
        "game_mode": 0,
        "score": (2, 1),
        "steps_left": 290,
        "duration_steps": 400,
    }
    return View(**{**values, **changes})


def near(picture: Picture, x: float, y: float, color: tuple[int, int, int]) -> bool:
    """Whether a pixel has a color, rounding aside."""
    difference = picture[round(y), round(x)].astype(int) - color
    return bool(np.abs(difference).max() <= 2)


# The pitch: 272 pixels of half a length (54.4 m), 418 for a unit of y (83.6 m), center (300, 242).


def test_the_clock_begins_at_zero() -> None:
    # As the engine tells it before the first step, and after it.
    before, after = (pitch.Pitch("test").draw(view(steps_left=steps)) for steps in (401, 400))
    np.testing.assert_array_equal(before, after)
    later = pitch.Pitch("test").draw(view(steps_left=399))
    assert (later != after).any()


def test_players_and_ball_are_where_they_are() -> None:
    picture = pitch.Pitch("test").draw(view())
    assert picture.shape == (pitch.HEIGHT, pitch.WIDTH, 3)
    assert near(picture, 300 + 0.25 * 272, 242 + 0.1 * 418, (255, 255, 255))
    # Beside the number: 6 of 8 pixels to the left.
    assert near(picture, 300 + 0.5 * 272 - 6, 242 - 0.21 * 418, pitch.LEFT_COLOR)
    # The first of a team is its keeper, in a darker shirt.
    for x, y, color in ((-1.0, 0.0, pitch.LEFT_COLOR), (0.75, 0.21, pitch.RIGHT_COLOR)):
        darker = tuple(round(c * 0.55) for c in color)
        assert near(picture, 300 + x * 272 - 6, 242 + y * 418, darker)  # type: ignore[arg-type]
    # Nothing is drawn where nobody is.
    turf = [(46, 125, 68), (41, 115, 62)]
    assert any(near(picture, 300 - 0.3 * 272, 242 + 0.3 * 418, color) for color in turf)


def test_a_ball_in_the_air_is_above_its_place_and_casts_a_shadow() -> None:
    x, y = 300 + 0.25 * 272, 242 + 0.1 * 418
    low = pitch.Pitch("test").draw(view())
    high = pitch.Pitch("test").draw(view(ball=[0.25, 0.1, 3.35]))
    # 3 m above what counts as rolling: 21 pixels, at 7 a meter.
    assert near(high, x, y - 21, (255, 255, 255))
    assert not near(low, x, y - 21, (255, 255, 255))
    assert not near(high, x + 2, y, (255, 255, 255))


def test_what_is_active_and_who_owns_the_ball_is_marked() -> None:
    x, y = 300 + 0.5 * 272, 242 - 0.21 * 418
    drawn = pitch.Pitch("test")
    active = drawn.draw(view())
    assert near(active, x, y - 8 - 11, (255, 84, 84))
    assert not near(drawn.draw(view(active=[-1])), x, y - 8 - 11, (255, 84, 84))
    ring = (x + 8 + 3.25, y)
    owned = drawn.draw(view(ball_owned_team=0, ball_owned_player=1))
    assert near(owned, *ring, (255, 255, 255))
    assert not near(active, *ring, (255, 255, 255))


def test_the_score_is_on_the_board() -> None:
    drawn = pitch.Pitch("test")
    one, other = (drawn.draw(view(score=score))[:44, 270:330] for score in ((2, 1), (2, 2)))
    assert (one != other).any()
    clock = [drawn.draw(view(steps_left=left))[:44, 480:] for left in (290, 289)]
    assert (clock[0] != clock[1]).any()


# The panel.


def decision(policy: list[float], action: Any = 0, **changes: Any) -> Decision:
    values: dict[str, Any] = {
        "action": np.atleast_1d(action),
        "value": 0.5,
        "policy": np.array(policy, np.float32),
        "kind": PROBABILITIES,
    }
    return Decision(**{**values, **changes})


def test_bars_are_as_long_as_the_probabilities() -> None:
    drawn = panel.Panel(DiscreteActionSpec((3,)), ("a", "b", "c"), "test")
    picture = drawn.draw(440, 0, 0.0, decision([0.5, 0.125, 0.375], action=2)).astype(int)
    # Rows of 16 pixels begin at 60 + 16 + 44 + 14 + 18.
    for row, (share, color) in enumerate(
        [(0.5, (72, 149, 239)), (0.125, (72, 149, 239)), (0.375, (255, 183, 3))]
    ):
        line = picture[152 + 16 * row + 8, round(panel.BAR_X) :]
        length = np.count_nonzero((np.abs(line - color) <= 2).all(axis=1))
        assert length == pytest.approx(panel.BAR_WIDTH * share, abs=1.0)


def test_rows_of_a_policy() -> None:
    names = ("left", "right")
    rows = panel.rows(decision([0.25, 0.75], action=1), DiscreteActionSpec((2,)), names)
    assert rows == [
        panel.Row("left", "25 %", 0.25, False),
        panel.Row("right", "75 %", 0.75, True),
    ]
    # Of Q-values the smallest has no bar, the largest a whole one.
    q = decision([-1.0, 3.0, 0.0], kind=inference_pb2.POLICY_KIND_ACTION_VALUES)
    shares = [row.share for row in panel.rows(q, DiscreteActionSpec((3,)), ("a", "b", "c"))]
    assert shares == [0, 1, 0.25]
    two = panel.rows(
        decision([0.5, 0.5, 1.0], action=np.array([1, 0])), DiscreteActionSpec((2, 1)), ("0", "1")
    )
    assert [(row.name, row.chosen) for row in two] == [
        ("1: 0", False),
        ("1: 1", True),
        ("2: 0", True),
    ]
    spec = ContinuousActionSpec((-2.0,), (2.0,))
    normal = decision([0.5, 0.1], action=np.array([1.0]), kind=inference_pb2.POLICY_KIND_NORMAL)
    assert panel.rows(normal, spec, ("0",)) == [panel.Row("0", "+1.00", 0.75, False)]


def test_many_actions_fit() -> None:
    drawn = panel.Panel(DiscreteActionSpec((300,)), tuple(map(str, range(300))), "test")
    assert drawn.draw(200, 0, 0.0, decision([1 / 300] * 300, action=299)).shape == (200, 240, 3)


# GIFs.


def _gif(frames: list[Picture], **options: float) -> Image.Image:
    file = io.BytesIO()
    writer = GifWriter(file, 20.0)
    for frame in frames:
        writer.add(frame, **options)
    writer.close()
    return Image.open(io.BytesIO(file.getvalue()))


def test_a_gif_shows_the_frames() -> None:
    frames = [np.full((20, 30, 3), (10, 60, 20), np.uint8) for _ in range(4)]
    frames[1][5:9, 7:12] = (250, 200, 0)
    frames[2][:] = frames[1]  # no change
    # Colors that the first frame has not: a palette of its own.
    frames[3][2:18, 2:28] = np.random.default_rng(0).integers(0, 255, 3, np.uint8)
    image = _gif(frames)
    assert image.n_frames == 4  # type: ignore[attr-defined]
    assert image.info["loop"] == 0
    for i, frame in enumerate(frames):
        image.seek(i)
        assert image.info["duration"] == 50
        shown = np.asarray(image.convert("RGB")).astype(int)
        assert np.abs(shown - frame).max() <= 4, i
    longer = _gif(frames[:1], hold_seconds=1.5)
    assert longer.info["duration"] == 1550


def test_a_gif_has_only_what_changed() -> None:
    random = np.random.default_rng(0)
    frame = random.integers(0, 255, (100, 100, 3), np.uint8)
    other = frame.copy()
    other[50, 50] = 255 - other[50, 50]
    sizes = []
    for frames in ([frame], [frame, other]):
        file = io.BytesIO()
        writer = GifWriter(file, 10.0)
        for picture in frames:
            writer.add(picture)
        sizes.append(len(file.getvalue()))
    assert sizes[1] - sizes[0] < 1000 < sizes[0]


# Heat maps.


def test_positions_are_counted_by_cell() -> None:
    heat = HeatMap()
    assert heat.is_empty
    heat.add({"ball": [(0.0, 0.0), (0.5, 0.5), (0.5, 0.5), (1.2, -3.0)]})
    heat.add({"ball": [(1.0, 1.0)], "left team": [(0.25, 0.5)]})
    counts = heat.counts("ball")
    # 52 columns and 34 rows; what is outside counts at the edge.
    assert (counts[0, 0], counts[17, 26], counts[0, 51], counts[33, 51]) == (1, 2, 1, 1)
    assert counts.sum() == 5
    assert heat.counts("left team")[17, 13] == 1
    picture = heat.draw("two maps").astype(int)
    # The hottest cell is the brightest: the middle of the first map.
    assert (
        picture[:, :440].sum(axis=2)[100:300].max()
        == picture[64 + 17 * 8 + 4, 16 + 26 * 8 + 5].sum()
    )


# The camera.


class Numbered(Environment):
    """Shows its step as a gray square of 3 by 4."""

    def __init__(self) -> None:
        self.steps = 0
        self.broken = False

    @property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec((TensorSpec("x", DataType.FLOAT32, (1,)),), DiscreteActionSpec((2,)))

    def reset(self) -> Observation:
        self.steps = 0
        return (np.zeros((1, 1), np.float32),)

    def step(self, action: npt.NDArray[np.generic]) -> Transition:
        self.steps += 1
        return Transition(self.reset(), np.zeros(1, np.float32), False, False)

    def picture(self) -> npt.NDArray[np.uint8]:
        if self.broken:
            raise PictureError("broken")
        return np.full((3, 4, 3), self.steps, np.uint8)

    def positions(self) -> Positions:
        return {"it": [(0.5, 0.5)]}


def _play(camera: Camera, environment: Numbered, steps: int) -> None:
    camera.begin(environment)
    for step in range(steps + 1):
        environment.steps = step
        camera.add(environment, 1.0, decision([0.5, 0.5]), ends=step == steps)


def test_every_second_episode_is_recorded() -> None:
    camera = Camera("pod/a.b", RecordingConfig(every_episodes=2, episodes=2))
    for _ in range(7):
        _play(camera, Numbered(), 4)
    files = camera.take()
    assert [f.name for f in files] == [
        "pod-a-b-000000.gif",
        "pod-a-b-heat-map.png",
        "pod-a-b-000002.gif",
        "pod-a-b-heat-map.png",
    ]
    assert camera.take() == []
    assert (camera.recorded, camera.failures) == (2, 0)
    image = Image.open(files[0].file)
    assert image.n_frames == 5  # type: ignore[attr-defined]
    # The game is enlarged to 133 x 3 pixels, the panel stands beside it.
    assert image.size == (4 * 133 + panel.WIDTH, 3 * 133)
    assert Image.open(files[1].file).format == "PNG"


def test_a_recording_has_a_largest_size() -> None:
    camera = Camera("a", RecordingConfig(every_episodes=1, max_frames=3))
    _play(camera, Numbered(), 50)
    assert Image.open(camera.take()[0].file).n_frames == 3  # type: ignore[attr-defined]


def test_evaluation_goes_on_without_a_recording_that_cannot_be_made() -> None:
    camera = Camera("a", RecordingConfig(every_episodes=1))
    environment = Numbered()
    environment.broken = True
    _play(camera, environment, 3)
    assert (camera.recorded, camera.failures, camera.is_on) == (0, 1, False)
    environment.broken = False
    _play(camera, environment, 3)
    assert camera.recorded == 1


def test_an_episode_that_is_lost_leaves_nothing() -> None:
    camera = Camera("a", RecordingConfig(every_episodes=1))
    environment = Numbered()
    camera.begin(environment)
    camera.add(environment, 0.0, decision([1, 0]), ends=False)
    camera.abandon()
    assert not camera.is_on
    assert camera.take() == []
