"""Certificates and keys of a deployment: an authority of its own, the server's certificate, a key for every node.

Private files are for their owner alone from the moment they exist.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import secrets
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pmfl.core.files import to_disk
from pmfl.errors import StoreError
from pmfl.study.store import storing

AUTHORITY_YEARS, SERVER_YEARS = 20, 2
RENEW_DAYS = 60  # a server certificate with less left than this is made anew by the next `pmfl deploy init`
PRIVATE = 0o600


def write_private(file: Path, content: bytes) -> None:
    """Put a file in place that only its owner may read; it is never readable by others, not even half written."""
    with storing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f".{file.name}.{os.getpid()}.part")
        beside.unlink(missing_ok=True)
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            to_disk(beside)
            beside.replace(file)
        finally:
            beside.unlink(missing_ok=True)


def write_secret(file: Path) -> str:
    """A new secret that two processes of one owner share through a file."""
    secret = secrets.token_hex(32)
    write_private(file, secret.encode())
    return secret


def node_key(file: Path) -> str:
    """A node's public key as OpenSSH writes it; the private one is made where there is none."""
    if not file.exists():
        key = ec.generate_private_key(ec.SECP384R1())
        form = serialization.PrivateFormat.OpenSSH
        write_private(file, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return public_key(file)


def public_key(file: Path) -> str:
    """The public half of a node's private key, as OpenSSH writes it."""
    key = _loaded(file, "ssh").public_key()
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()


def authority(certificate: Path, key: Path) -> None:
    """A certificate authority for this deployment alone, where there is none."""
    if certificate.exists() and key.exists():
        return
    own = ec.generate_private_key(ec.SECP384R1())
    name = _name("pmfl deployment authority")
    made = (
        _builder(name, name, own.public_key(), AUTHORITY_YEARS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        .sign(own, hashes.SHA384())
    )
    _write_key(key, own)
    _write_certificate(certificate, made)


def server_certificate(certificate: Path, key: Path, ca: Path, ca_key: Path, hosts: tuple[str, ...]) -> bool:
    """The server's certificate for these names and numbers, made where it is missing, ending or for others."""
    if certificate.exists() and key.exists() and _still_good(certificate, hosts):
        return False
    signer = _loaded(ca_key, "pem")
    issuer = x509.load_pem_x509_certificate(ca.read_bytes())
    own = ec.generate_private_key(ec.SECP384R1())
    made = (
        _builder(_name("pmfl deployment server"), issuer.subject, own.public_key(), SERVER_YEARS)
        .add_extension(x509.SubjectAlternativeName([_san(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    _write_key(key, own)
    _write_certificate(certificate, made)
    return True


def days_left(certificate: Path) -> float:
    """How long a certificate still holds."""
    ends = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    return (ends - dt.datetime.now(dt.UTC)) / dt.timedelta(days=1)


def _still_good(certificate: Path, hosts: tuple[str, ...]) -> bool:
    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return set(map(_san, hosts)) <= set(names) and days_left(certificate) > RENEW_DAYS


def _loaded(file: Path, kind: str) -> ec.EllipticCurvePrivateKey:
    load = serialization.load_ssh_private_key if kind == "ssh" else serialization.load_pem_private_key
    try:
        key = load(file.read_bytes(), None)
    except (OSError, ValueError) as error:
        hint = "put back the file that `pmfl deploy init` made; a new one would have to be registered with the server"
        raise StoreError(f"{file} is not a private key of ours: {error}", hint=hint, code="R170") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise StoreError(f"{file} is a key of another kind", hint="`pmfl deploy init` makes the right one", code="R170")
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, years: int
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))  # clocks differ
        .not_valid_after(now + dt.timedelta(days=365 * years))
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _san(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    form = serialization.PrivateFormat.PKCS8
    write_private(file, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def _write_certificate(file: Path, certificate: x509.Certificate) -> None:
    with storing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
