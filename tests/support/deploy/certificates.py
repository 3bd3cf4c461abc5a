"""`Authority`: a certificate authority made at run time, and server certificates that it signs."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_ADDRESS = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def make(cls) -> Self:
        key = ec.generate_private_key(ec.SECP256R1())
        draft = _draft("tests' own authority", key).issuer_name(_name("tests' own authority"))
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        draft = draft.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        draft = draft.add_extension(usage, critical=True)
        draft = draft.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
        )
        return cls(draft.sign(key, SHA256()), key)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def serve(self, folder: Path) -> tuple[Path, Path]:
        """Write the certificate and key of a server on this machine; return their paths."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = [x509.IPAddress(ip_address(_ADDRESS)), x509.DNSName("localhost")]
        signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        draft = _draft(_ADDRESS, key).issuer_name(self.certificate.subject)
        draft = draft.add_extension(x509.SubjectAlternativeName(names), critical=False)
        draft = draft.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        certificate = draft.add_extension(signer, critical=False).sign(self.key, SHA256())
        paths = folder / "server.pem", folder / "server.key"
        paths[0].write_bytes(certificate.public_bytes(Encoding.PEM))
        paths[1].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return paths


def _draft(name: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    draft = x509.CertificateBuilder().subject_name(_name(name)).public_key(key.public_key())
    draft = draft.serial_number(x509.random_serial_number())
    return draft.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])
