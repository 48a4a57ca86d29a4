"""layers.csv as it is read and drawn."""

from gmmvit.paper import layers

LINES = """epoch,layer,entropy,uniform,distance,moved,near,corner
0,a,4.1,4.16,5.2,0.0,0.9,0.5
0,b,3.9,4.16,5.0,,,
1,a,3.0,4.16,3.1,0.02,0.9,0.5
1,b,2.9,4.16,2.0,,,
2,a,2.8,4.16,3.0,0.5,0.9,0.5
2,b,2.7,4.16,1.0,,,
"""


def drawn(tmp_path, text):
    (tmp_path / "layers.csv").write_text(text)
    return layers.by_layer(layers.read(tmp_path))


def curves(axes):
    return [line.get_ydata().tolist() for line in axes.lines if len(line.get_xdata()) > 1 and line.get_marker() == "o"]


def test_every_layer_is_a_line_and_uniform_attention_a_dashed_one(tmp_path):
    entropy, distance, moved = drawn(tmp_path, LINES).axes
    assert curves(entropy) == [[4.1, 3.0, 2.8], [3.9, 2.9, 2.7]] and curves(distance) == [
        [5.2, 3.1, 3.0],
        [5.0, 2.0, 1.0],
    ]
    assert curves(moved) == [[0.02, 0.5]]  # layer b has no mask; a logarithm has no 0
    dashed = [line.get_ydata()[0] for axes in (entropy, moved) for line in axes.lines if line.get_linestyle() == "--"]
    assert dashed == [4.16, 0.01]
    assert [each.get_text() for each in entropy.get_legend().get_texts()] == ["layer 1", "layer 2"]


def test_what_is_not_known_is_not_drawn(tmp_path):
    figure = drawn(tmp_path, "epoch,layer,entropy,uniform,distance,moved,near,corner\n0,a,,,,0.0,,\n1,a,,,,0.0,,\n")
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_ylabel() for axes in shown] == [layers.LABELS["moved"]]
    assert shown[0].get_yscale() == "linear" and figure._repr_png_()  # all 0: no logarithm


def test_a_run_without_lines_has_no_figure(tmp_path):
    assert layers.read(tmp_path) is None
    (tmp_path / "layers.csv").write_text(LINES.splitlines()[0] + "\n")
    assert layers.read(tmp_path) is None
