"""The XMP packet that names the content's source in the words of the IPTC, and its place in an MP4 file."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from uuid import UUID
from xml.etree import ElementTree

from magi2.media.marks.aigc import AIGC_KEY

XMP_UUID = UUID("BE7ACFCB-97A9-42E8-9C71-999491E3AFAC").bytes
"""Type of the MP4 box that holds an XMP packet."""
TRAINED = "http://cv.iptc.org/newscodes/digitalsourcetype/trainedAlgorithmicMedia"
"""IPTC's name for what a trained model made."""
_EXTENSION = "http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
_SOURCE_TYPE = f"{{{_EXTENSION}}}DigitalSourceType"
_PACKET = f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>
<x:xmpmeta xmlns:x="adobe:ns:meta/">
 <rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">
  <rdf:Description rdf:about="" xmlns:Iptc4xmpExt="{_EXTENSION}">
   <Iptc4xmpExt:DigitalSourceType>{TRAINED}</Iptc4xmpExt:DigitalSourceType>
  </rdf:Description>
 </rdf:RDF>
</x:xmpmeta>
<?xpacket end="r"?>"""


@dataclass(frozen=True)
class XmpMarks:
    """What a packet says: its `DigitalSourceType`s, and its properties named AIGC in any namespace."""

    source_types: tuple[str, ...] = ()
    aigc: tuple[str, ...] = ()


def xmp_packet() -> bytes:
    """The packet, the same for every file."""
    return _PACKET.encode()


def xmp_box() -> bytes:
    """The packet in a box that may stand at the end of an MP4 file."""
    content = XMP_UUID + xmp_packet()
    return struct.pack(">I4s", 8 + len(content), b"uuid") + content


def parse_xmp(packet: bytes) -> XmpMarks | None:
    """What a packet says, None when it is no XML in UTF-8 or declares entities, which can unfold without end."""
    try:
        text = packet.strip(b"\0").decode()
        if "<!DOCTYPE" in text:
            return None
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError):
        return None
    properties = [(element.tag, (element.text or "").strip()) for element in root.iter()]
    properties += [pair for element in root.iter() for pair in element.attrib.items()]
    return XmpMarks(
        source_types=tuple(value for name, value in properties if name == _SOURCE_TYPE),
        aigc=tuple(value for name, value in properties if name.rpartition("}")[2] == AIGC_KEY),
    )
