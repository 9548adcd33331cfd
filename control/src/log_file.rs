//! A log file that begins anew before it grows too long.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Longest log file, in bytes.
const MAX_LEN: u64 = 10 << 20;

/// How many full ones are kept beside it: NAME.1, the newest, to NAME.4.
const KEPT: u32 = 4;

/// An open log file. What is written at once stays together.
#[derive(Debug)]
pub struct LogFile {
    path: PathBuf,
    /// `None` while files are renamed, and when none could be opened since.
    file: Option<File>,
    len: u64,
    max_len: u64,
}

impl LogFile {
    /// Goes on with the file of that name, or begins it; its folder is made if need be.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn open(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let mut log = Self { path: path.to_owned(), file: None, len: 0, max_len: MAX_LEN };
        log.reopen()?;
        Ok(log)
    }

    fn reopen(&mut self) -> io::Result<&mut File> {
        let file = OpenOptions::new().create(true).append(true).open(&self.path)?;
        self.len = file.metadata()?.len();
        Ok(self.file.insert(file))
    }

    /// Where a file cannot be renamed, say because somebody reads it, the old one grows on.
    fn rotate(&mut self) {
        self.file = None;
        for number in (1..KEPT).rev() {
            let _ = fs::rename(self.numbered(number), self.numbered(number + 1));
        }
        let _ = fs::rename(&self.path, self.numbered(1));
    }

    fn numbered(&self, number: u32) -> PathBuf {
        let mut name = OsString::from(&self.path);
        name.push(format!(".{number}"));
        name.into()
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.len > 0 && self.len + bytes.len() as u64 > self.max_len {
            self.rotate();
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => self.reopen()?,
        };
        let written = file.write(bytes)?;
        self.len += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), Write::flush)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_is_kept_under_a_number_and_the_oldest_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made").join("windlass.log");
        let mut log = LogFile::open(&path).unwrap();
        log.max_len = 16;
        for number in 1..=14 {
            log.write_all(format!("line {number:02}\n").as_bytes()).unwrap();
        }
        let text = |path: PathBuf| fs::read_to_string(path).unwrap();
        assert_eq!(text(path.clone()), "line 13\nline 14\n");
        assert_eq!(text(log.numbered(1)), "line 11\nline 12\n");
        assert_eq!(text(log.numbered(4)), "line 05\nline 06\n");
        assert!(!log.numbered(5).exists());
    }

    #[test]
    fn a_file_is_gone_on_with_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("windlass.log");
        for line in ["one\n", "two\n"] {
            LogFile::open(&path).unwrap().write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    }
}
