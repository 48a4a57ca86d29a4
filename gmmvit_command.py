"""The program `gmmvit`: help and wrong words are answered before torch and timm are loaded, which takes seconds."""

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path


def main() -> int:
    """Reads the words by gmmvit/words.py, outside its package; then runs the verb inside it."""
    place = Path(find_spec("gmmvit").origin).with_name("words.py")
    spec = spec_from_file_location("gmmvit_words", place)
    words = module_from_spec(spec)
    spec.loader.exec_module(words)
    words.parser().parse_args()  # --help ends here, and what the parser refuses
    from gmmvit.cli import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
