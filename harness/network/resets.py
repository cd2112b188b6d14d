"""TCP resets for the two ends of a connection, made from one of its packets. Pure."""

from __future__ import annotations

import struct

__all__ = ["resets_for"]

_TCP = 6
_FIN, _SYN, _RST, _ACK = 0x01, 0x02, 0x04, 0x10


def resets_for(packet: bytes) -> tuple[bytes, bytes | None]:
    """Returns the resets for a packet's sender and for its receiver, as a firewall sends them.

    Args:
      packet: An IPv4 packet.

    Returns:
      The packet for the sender, empty if it needs none; and that for the receiver, None if there
      is no connection yet.
    """
    head = (packet[0] & 0x0F) * 4
    if packet[9] != _TCP:
        return b"", None
    source, target = packet[12:16], packet[16:20]
    sport, dport, sequence, answered, offset, flags = struct.unpack_from(">HHIIBB", packet, head)
    if flags & _RST:
        return b"", None
    length = len(packet) - head - (offset >> 4) * 4 + bool(flags & _SYN) + bool(flags & _FIN)
    # A receiver takes a reset only with exactly the next number that it expects (RFC 5961).
    back = answered if flags & _ACK else 0
    to_sender = _reset(target, source, dport, sport, back, (sequence + length) & 0xFFFFFFFF)
    if flags & _SYN:
        return to_sender, None
    return to_sender, _reset(source, target, sport, dport, sequence, answered)


def _reset(
    source: bytes, target: bytes, sport: int, dport: int, sequence: int, answered: int
) -> bytes:
    def tcp(checksum: int) -> bytes:
        flags = _RST | _ACK
        return struct.pack(
            ">HHIIBBHHH", sport, dport, sequence, answered, 5 << 4, flags, 0, checksum, 0
        )

    pseudo = source + target + struct.pack(">BBH", 0, _TCP, 20)
    segment = tcp(_checksum(pseudo + tcp(0)))

    def ip(checksum: int) -> bytes:
        fixed = struct.pack(">BBHHHBBH", 0x45, 0, 40, 0, 0, 64, _TCP, checksum)
        return fixed + source + target

    return ip(_checksum(ip(0))) + segment


def _checksum(data: bytes) -> int:
    words: tuple[int, ...] = struct.unpack(f">{len(data) // 2}H", data)
    total = sum(words)
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF
