# Prints one line per VXLAN datagram of a capture, as scapy reads it, and whether every inner checksum is the one scapy computes.
import sys
from scapy.all import IP, IPv6, TCP, UDP, VXLAN, rdpcap, ICMP

for packet in rdpcap(sys.argv[1]):
    vxlan = packet[VXLAN]
    frame = vxlan.payload
    ip = frame.payload
    again = ip.copy()
    l4 = again.payload
    if isinstance(again, IP):
        del again.chksum
    for kind in (TCP, UDP, ICMP):
        if isinstance(l4, kind):
            del l4.chksum
    ports = (l4.sport, l4.dport) if isinstance(l4, (TCP, UDP)) else (0, 0)
    protocol = ip.proto if isinstance(ip, IP) else ip.nh
    same = "right" if bytes(again) == bytes(ip) else "wrong"
    print(int(vxlan.flags), vxlan.vni, frame.dst, frame.src, ip.src, ip.dst, protocol, *ports, same)
