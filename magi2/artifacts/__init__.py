"""Finished work by content: recipes, manifests and the stores that hold them. Imports without torch."""

from magi2.artifacts.address import open_store
from magi2.artifacts.fingerprint import checkpoint_fingerprint
from magi2.artifacts.local import LocalStore
from magi2.artifacts.manifest import Manifest, ManifestDraft, Payload
from magi2.artifacts.recipe import JSON, Recipe, canonical_json, sha256_file, sha256_text
from magi2.artifacts.store import ArtifactStore
from magi2.artifacts.tensors import TensorSpec, load_tensors, read_specs, save_tensors

__all__ = [
    "JSON",
    "ArtifactStore",
    "LocalStore",
    "Manifest",
    "ManifestDraft",
    "Payload",
    "Recipe",
    "TensorSpec",
    "canonical_json",
    "checkpoint_fingerprint",
    "load_tensors",
    "open_store",
    "read_specs",
    "save_tensors",
    "sha256_file",
    "sha256_text",
]
