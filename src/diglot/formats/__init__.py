"""What other programs read: a trained model in CTranslate2's format, and as safetensors.

representable: what CTranslate2 cannot hold, by the model's config. ctranslate2: the converter. parity: whether the two
engines say the same. safetensors: weights and config as plain data. folder: where an export goes. Only ctranslate2,
parity and safetensors need the extra `export`; each is imported when it is needed.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from diglot.errors import UserError
from diglot.formats.representable import unrepresentable


def check_format(form: str, model: Mapping[str, Any], key: str) -> None:
    """Make sure that a format can hold a model, and that the package of that name is installed.

    Args:
        form: ctranslate2 or safetensors.
        model: the model's config.
        key: of the config, that names the format.

    Raises:
        UserError: naming each key of the model that stands against it, and the nearest value that does not.
    """
    if form == "ctranslate2" and (reasons := unrepresentable(model)):
        raise UserError(f"{key}={form}: {'; '.join(reasons)}")
    if find_spec(form) is None:
        how = "pip install 'diglot[export]', or in a checkout .venv/bin/pip install -e '.[export]'"
        raise UserError(f"{key}={form}: {form} is not installed: {how}")
