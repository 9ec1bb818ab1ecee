"""Reset TCP connections from outside, like a firewall that lost its state: an RST after every packet."""

import socket
import struct
import time

ALL_FRAMES, IP, TCP, RST = 0x0003, b"\x08\x00", 6, 0x04


def reset_connections(interface: str, seconds: float) -> int:
    """Forge an RST after each TCP packet that passes `interface`; return the number of RSTs."""
    sent = 0
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_FRAMES)) as wire:
        wire.bind((interface, 0))
        wire.settimeout(0.1)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                forged = rst_behind(wire.recv(65535))
            except TimeoutError:
                continue
            if forged is not None:
                wire.send(forged)
                sent += 1
    return sent


def rst_behind(frame: bytes) -> bytes | None:
    """Return an RST that the receiver of a TCP packet attributes to its sender; None for any other frame."""
    ip = frame[14:]
    if frame[12:14] != IP or len(ip) < 40 or ip[9] != TCP:
        return None
    head, length = (ip[0] & 15) * 4, struct.unpack_from("!H", ip, 2)[0]
    tcp = ip[head:length]
    ports, sequence = tcp[:4], struct.unpack_from("!I", tcp, 4)[0]
    flags, payload = tcp[13], len(tcp) - (tcp[12] >> 4) * 4
    if flags & RST:
        return None
    following = (sequence + payload + (flags & 1) + (flags >> 1 & 1)) & 0xFFFFFFFF  # FIN and SYN count as a byte
    addresses = ip[12:20]
    segment = ports + struct.pack("!IIBBHHH", following, 0, 5 << 4, RST, 0, 0, 0)
    pseudo = addresses + struct.pack("!BBH", 0, TCP, len(segment))
    segment = segment[:16] + struct.pack("!H", checksum(pseudo + segment)) + segment[18:]
    packet = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0, 64, TCP, 0) + addresses
    packet = packet[:10] + struct.pack("!H", checksum(packet)) + packet[12:]
    return frame[:14] + packet + segment


def checksum(data: bytes) -> int:
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF
