"""Write a CycloneDX SBOM from what stands in a JSON file, and hold it to the schema; run by the interpreter of the tools.

``write_sbom.py GIVEN SBOM``: GIVEN has ``version``, ``timestamp`` and ``components``, each with ``name``, ``version``,
``licence`` (text, may be empty), ``requires`` (names) and ``files`` (name → SHA-256).
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL


def document(given: dict[str, Any]) -> Bom:
    """The SBOM; the same input makes the same document."""
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, json.dumps(given, sort_keys=True)))
    bom.metadata.timestamp = datetime.fromisoformat(given["timestamp"])
    whole = Component(
        name="astraflow",
        version=given["version"],
        type=ComponentType.APPLICATION,
        bom_ref="astraflow",
    )
    bom.metadata.component = whole
    made = {each["name"]: component(each) for each in given["components"]}
    for each in given["components"]:
        bom.components.add(made[each["name"]])
        bom.register_dependency(
            made[each["name"]], [made[n] for n in each["requires"] if n in made]
        )
    bom.register_dependency(
        whole, [made[each["name"]] for each in given["components"] if each["files"]]
    )
    return bom


def component(each: dict[str, Any]) -> Component:
    """A distribution; its files are references with their hashes."""
    name, version, licence = each["name"], each["version"], each["licence"]
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{name}@{version}",
        purl=PackageURL("pypi", name=name, version=version),
        licenses=[LicenseFactory().make_from_string(licence)] if licence else [],
        external_references=[
            ExternalReference(
                type=ExternalReferenceType.DISTRIBUTION,
                url=XsUri(file),
                hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
            )
            for file, digest in each["files"].items()
        ],
    )


def main(given: str, target: str) -> None:
    """Write and validate."""
    text = JsonV1Dot6(
        document(json.loads(Path(given).read_text(encoding="utf-8")))
    ).output_as_string(indent=1)
    problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if problem is not None:
        sys.exit(f"the SBOM breaks the schema of CycloneDX 1.6: {problem}")
    Path(target).write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
