import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from pmfl.deploy import keys
from pmfl.deploy.gate import as_flower_writes
from pmfl.errors import StoreError


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def made(folder: Path, *hosts: str) -> bool:
    keys.authority(folder / "ca.pem", folder / "ca-key.pem")
    return keys.server_certificate(folder / "c.pem", folder / "k.pem", folder / "ca.pem", folder / "ca-key.pem", hosts)


def test_the_server_certificate_is_signed_by_the_authority_for_its_names(tmp_path: Path) -> None:
    assert made(tmp_path, "fl.example.org", "10.1.2.3")
    ca, own = (x509.load_pem_x509_certificate((tmp_path / name).read_bytes()) for name in ("ca.pem", "c.pem"))
    own.verify_directly_issued_by(ca)
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    assert list(map(str, names.get_values_for_type(x509.IPAddress))) == ["10.1.2.3"]
    assert keys.days_left(tmp_path / "c.pem") > 700


def test_private_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    made(tmp_path, "localhost")
    keys.node_key(tmp_path / "node" / "key.pem")
    keys.write_secret(tmp_path / "secret")
    assert {mode(tmp_path / name) for name in ("ca-key.pem", "k.pem", "node/key.pem", "secret")} == {0o600}
    assert not list(tmp_path.rglob("*.part"))


def test_what_is_there_stays(tmp_path: Path) -> None:
    made(tmp_path, "localhost")
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert not made(tmp_path, "localhost")
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    key = keys.node_key(tmp_path / "key.pem")
    assert keys.node_key(tmp_path / "key.pem") == key == keys.public_key(tmp_path / "key.pem")


def test_another_name_or_little_time_left_renews_the_certificate_under_the_same_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, "localhost")
    ca = (tmp_path / "ca.pem").read_bytes()
    assert made(tmp_path, "localhost", "fl.example.org")
    monkeypatch.setattr(keys, "RENEW_DAYS", 10_000)
    assert made(tmp_path, "localhost")
    assert (tmp_path / "ca.pem").read_bytes() == ca


def test_a_node_key_is_one_that_flower_takes(tmp_path: Path) -> None:
    openssh = keys.node_key(tmp_path / "key.pem")
    key = serialization.load_pem_public_key(as_flower_writes(openssh))
    assert isinstance(key, ec.EllipticCurvePublicKey)
    assert key.curve.name == "secp384r1"


def test_a_damaged_or_foreign_key_is_refused(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("nothing")
    with pytest.raises(StoreError, match="not a private key of ours"):
        keys.node_key(tmp_path / "key.pem")
    other = ed25519.Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    (tmp_path / "key.pem").write_bytes(other)
    with pytest.raises(StoreError, match="another kind"):
        keys.node_key(tmp_path / "key.pem")
