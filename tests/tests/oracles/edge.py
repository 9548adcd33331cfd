# Both ends of a node's links: puts a frame on one and tells what comes out of the other.
# A line of input is "<pod|wire> <seconds to wait> <frame in hex>"; the answer is a frame in hex, or "-".
import select, socket, sys, time

PACKET_OUTGOING = 4
links = {}
for name in ("pod", "wire"):
    links[name] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    links[name].bind((name, 0))

def wanted(name, frame):
    kind = frame[12:14]
    if name == "wire":
        return kind == b"\x08\x00" and frame[23] == 17 and frame[36:38] == (4789).to_bytes(2, "big")
    if kind == b"\x86\xdd":
        # No neighbor discovery or router solicitation.
        return not (frame[20] == 58 and 133 <= frame[54] <= 137) and frame[20] != 0
    return kind == b"\x08\x00"

for line in sys.stdin:
    name, patience, frame = line.split()
    there = "wire" if name == "pod" else "pod"
    links[name].send(bytes.fromhex(frame))
    answer, end = "-", time.monotonic() + float(patience)
    while answer == "-" and time.monotonic() < end:
        if select.select([links[there]], [], [], max(0, end - time.monotonic()))[0]:
            got, address = links[there].recvfrom(65535)
            if address[2] != PACKET_OUTGOING and wanted(there, got):
                answer = got.hex()
    print(answer, flush=True)
