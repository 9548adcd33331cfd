//! pcapng files of raw IP packets, time stamps in nanoseconds.

use std::io::{self, Write};
use std::time::Duration;

use super::RAW_IP;
use super::pcapng::{
    BYTE_ORDER_MAGIC, ENHANCED_PACKET, INTERFACE, OPTION_COMMENT, OPTION_END, OPTION_RESOLUTION, SECTION,
};

const OPTION_NAME: u16 = 2;
const OPTION_APPLICATION: u16 = 4;
const OPTION_FLAGS: u16 = 2;

/// Ten to the power of minus nine.
const NANOSECONDS: u8 = 9;

/// Which way a packet went, seen from the interface it was captured on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Received.
    Inbound = 1,
    /// Sent.
    Outbound = 2,
}

/// A packet to write.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The number of its interface, in the order in which they were given.
    pub interface: u32,
    /// When, since 1970.
    pub at: Duration,
    /// The bytes that were kept, from the IP header on.
    pub bytes: &'a [u8],
    /// How many there were.
    pub original_len: u32,
    /// Which way it went.
    pub direction: Direction,
    /// What Wireshark is to show with it; empty for nothing.
    pub comment: &'a str,
}

/// Writes a pcapng file.
#[derive(Debug)]
pub struct PcapngWriter<W> {
    out: W,
}

impl<W: Write> PcapngWriter<W> {
    /// A file whose interfaces have these names.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn new(out: W, interfaces: &[&str]) -> io::Result<Self> {
        let mut writer = Self { out };
        let mut section = BYTE_ORDER_MAGIC.to_le_bytes().to_vec();
        // Version 1.0, and a section length that is not given.
        section.extend([1, 0, 0, 0]);
        section.extend([0xff; 8]);
        option(&mut section, OPTION_APPLICATION, b"windlass");
        end_options(&mut section);
        writer.block(SECTION, &section)?;
        for name in interfaces {
            let mut interface = (RAW_IP as u16).to_le_bytes().to_vec();
            // No limit to what is kept of a packet.
            interface.extend([0; 6]);
            option(&mut interface, OPTION_NAME, name.as_bytes());
            option(&mut interface, OPTION_RESOLUTION, &[NANOSECONDS]);
            end_options(&mut interface);
            writer.block(INTERFACE, &interface)?;
        }
        Ok(writer)
    }

    /// Adds a packet.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn packet(&mut self, record: &Record<'_>) -> io::Result<()> {
        let at = record.at.as_nanos() as u64;
        let fields =
            [record.interface, (at >> 32) as u32, at as u32, record.bytes.len() as u32, record.original_len];
        let mut body = fields.map(u32::to_le_bytes).concat();
        body.extend_from_slice(record.bytes);
        body.resize(body.len().next_multiple_of(4), 0);
        option(&mut body, OPTION_FLAGS, &(record.direction as u32).to_le_bytes());
        if !record.comment.is_empty() {
            option(&mut body, OPTION_COMMENT, record.comment.as_bytes());
        }
        end_options(&mut body);
        self.block(ENHANCED_PACKET, &body)
    }

    /// Writes out what is held back, and gives the file back.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }

    fn block(&mut self, kind: u32, body: &[u8]) -> io::Result<()> {
        let len = (body.len() as u32 + 12).to_le_bytes();
        self.out.write_all(&kind.to_le_bytes())?;
        self.out.write_all(&len)?;
        self.out.write_all(body)?;
        self.out.write_all(&len)
    }
}

/// Adds an option; a value too long for one is cut.
fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    let len = u16::try_from(value.len()).unwrap_or(u16::MAX);
    body.extend(code.to_le_bytes());
    body.extend(len.to_le_bytes());
    body.extend_from_slice(&value[..len.into()]);
    body.resize(body.len().next_multiple_of(4), 0);
}

fn end_options(body: &mut Vec<u8>) {
    body.extend(OPTION_END.to_le_bytes());
    body.extend([0, 0]);
}
