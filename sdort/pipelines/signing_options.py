"""Options of the commands that sign what they write, each declared once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sdort.options.declared_options import option


@dataclass(frozen=True, kw_only=True)
class SigningOptions:
    """Whose signature an output folder gets (:mod:`sdort.pipelines.folder_signature`)."""

    sign: Path | None = option(
        None,
        section="Results",
        metavar="KEY.pem",
        help="Sign OUT with this private key of an elliptic curve. The signature is OUT/model.sig, for sdort verify "
        "--signature and sigstore's model_signing.",
        doc="A private key in PEM, to sign ``out`` with: ``model.sig`` in it.",
    )
    certificate: Path | None = option(
        None,
        section="Results",
        metavar="CERT.pem",
        needs="sign",
        help="With --sign: the certificate of the key, followed by the certificates that lead to a root.",
        doc="With ``sign``: the key's certificate in PEM, and after it those that lead to a root.",
    )
