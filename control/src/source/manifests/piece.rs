//! A file's text, cut into pieces that can be read one by one: a document, or an item of a list. A piece that
//! says what one said before need not be read again.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use super::object::Object;

/// A piece and where it stands.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece<'a> {
    /// What it says.
    pub(super) text: &'a str,
    /// The file's line that it begins at.
    pub(super) line: u64,
    syntax: Syntax,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Syntax {
    Json,
    /// A document, which may be a list.
    Yaml,
    /// A sequence of one item, as it stands in a list.
    YamlItem,
}

/// The line of the file that cannot be read, and what the parser says.
pub(super) type Unreadable = (u64, String);

/// Pieces that follow each other: one object or list that is read as a whole, or the items of one list.
#[derive(Debug)]
pub(super) struct Group<'a> {
    /// What the items have in common, if they are a list's.
    pub(super) heading: Option<Heading>,
    /// What can be read one by one.
    pub(super) pieces: Vec<Piece<'a>>,
    /// Their document, to be read in their place when one of them does not make sense without the others.
    pub(super) whole: Option<Piece<'a>>,
}

/// The kind and version that items have which say none: those of a NodeList from the API do not.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Heading {
    kind: String,
    version: String,
}

/// Cuts a file's text.
///
/// # Errors
/// When it begins like JSON and is none.
pub(super) fn cut(text: &str) -> Result<Vec<Group<'_>>, Unreadable> {
    if text.trim_start().starts_with('{') {
        return json(text);
    }
    Ok(documents(text)
        .into_iter()
        .map(|document| list(document).unwrap_or_else(|| Group::of(document)))
        .collect())
}

impl<'a> Group<'a> {
    fn of(piece: Piece<'a>) -> Self {
        Self { heading: None, pieces: vec![piece], whole: None }
    }
}

impl Piece<'_> {
    /// The objects that it holds, of which a list has many; annotations are looked for under `prefix`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(super) fn read(&self, heading: Option<&Heading>, prefix: &str) -> Result<Vec<Object>, Unreadable> {
        let value = match self.syntax {
            Syntax::Json => self.json()?,
            Syntax::Yaml => self.yaml::<Value>()?,
            Syntax::YamlItem => {
                let [item] = self.yaml::<[Value; 1]>()?;
                item
            }
        };
        let values = match heading {
            Some(heading) => vec![heading.given_to(value)],
            None => objects_of(value),
        };
        Ok(values.into_iter().map(|value| Object::read(value, prefix)).collect())
    }

    fn json(&self) -> Result<Value, Unreadable> {
        serde_json::from_str(self.text).map_err(|error| {
            let said = error.to_string();
            // Where it is in the piece is not where it is in the file.
            let reason = said.rsplit_once(" at line ").map_or(said.as_str(), |(reason, _)| reason);
            (self.line + (error.line() as u64).saturating_sub(1), reason.to_owned())
        })
    }

    /// The error is the file's line, and what the parser says to those who write YAML, not Rust.
    fn yaml<T: DeserializeOwned>(&self) -> Result<T, Unreadable> {
        let options = serde_saphyr::options! {
            // A namespace may be called n or on: only true and false are booleans.
            strict_booleans: true,
            budget: serde_saphyr::budget! {
                max_events: 50_000_000,
                max_nodes: 20_000_000,
                max_total_scalar_bytes: 1 << 30,
            },
        };
        serde_saphyr::from_str_with_options(self.text, options).map_err(|error| {
            let lines_before = self.line.saturating_sub(1);
            let said = error.without_snippet().render_with_options(serde_saphyr::render_options! {
                formatter: &serde_saphyr::UserMessageFormatter,
                line_offset: lines_before,
            });
            (lines_before + error.location().map_or(1, |location| location.line()), said)
        })
    }
}

impl Heading {
    /// That of the items of a list that says this of itself; `None` when it is no list.
    fn of_list(kind: &str, version: &str) -> Option<Self> {
        let kind = kind.strip_suffix("List")?;
        Some(Self { kind: kind.to_owned(), version: version.to_owned() })
    }

    fn given_to(&self, mut item: Value) -> Value {
        if let Some(fields) = item.as_object_mut().filter(|_| !self.kind.is_empty()) {
            fields.entry("kind").or_insert_with(|| self.kind.as_str().into());
            fields.entry("apiVersion").or_insert_with(|| self.version.as_str().into());
        }
        item
    }
}

/// One object, or the items of a list.
fn objects_of(mut value: Value) -> Vec<Value> {
    let text =
        |value: &Value, key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (kind, version) = (text(&value, "kind"), text(&value, "apiVersion"));
    let Some(heading) = Heading::of_list(&kind, &version) else {
        return if value.is_null() { Vec::new() } else { vec![value] };
    };
    match value.get_mut("items").map(Value::take) {
        Some(Value::Array(items)) => items.into_iter().map(|item| heading.given_to(item)).collect(),
        _ => Vec::new(),
    }
}

/// Splits a file at its `---` lines, so that errors name the file's own lines.
fn documents(text: &str) -> Vec<Piece<'_>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut documents = Vec::new();
    let mut begun = Piece { text: "", line: 1, syntax: Syntax::Yaml };
    let mut from = 0;
    for line in lines(text) {
        let is_marker = |marker| {
            line.text
                .strip_prefix(marker)
                .is_some_and(|rest: &str| rest.is_empty() || rest.starts_with(char::is_whitespace))
        };
        let ends = is_marker("...");
        if ends || line.start > from && is_marker("---") {
            documents.push(Piece { text: &text[from..line.start], ..begun });
            from = if ends { line.start + line.text.len() } else { line.start };
            begun.line = line.index + if ends { 2 } else { 1 };
        }
    }
    documents.push(Piece { text: &text[from..], ..begun });
    documents
}

/// What a list says beside its items.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head<I> {
    kind: String,
    #[serde(default)]
    api_version: String,
    items: I,
}

/// Cuts a list as `kubectl` prints it: a line `items:` at the margin, and items that begin with a dash in one
/// column. `None` for whatever else a document may be. A cut in the middle of a text or bracket leaves a piece that
/// cannot be read, and so does an alias whose anchor is in another piece: the whole is read then.
fn list(document: Piece<'_>) -> Option<Group<'_>> {
    let text = document.text;
    let mut lines = lines(text);
    lines.find(|line| line.text.trim_end() == "items:")?;
    let mut starts = Vec::new();
    let (mut column, mut end) = (None, text.len());
    for line in lines {
        let indent = line.text.len() - line.text.trim_start_matches(' ').len();
        let rest = line.text[indent..].trim_end();
        if rest.is_empty() || rest.starts_with('#') {
            continue;
        }
        let has_dash = rest == "-" || rest.starts_with("- ");
        if has_dash && *column.get_or_insert(indent) == indent {
            starts.push((document.line + line.index, line.start));
        } else if indent == 0 || starts.is_empty() {
            end = line.start;
            break;
        }
    }
    let head = [&text[..starts.first()?.1], &text[end..]].concat();
    let head: Head<()> = Piece { text: &head, ..document }.yaml().ok()?;
    let ends = starts.iter().skip(1).map(|(_, start)| *start).chain([end]);
    let piece = |((line, start), end): (&(u64, usize), usize)| Piece {
        text: &text[*start..end],
        line: *line,
        syntax: Syntax::YamlItem,
    };
    Some(Group {
        heading: Some(Heading::of_list(&head.kind, &head.api_version)?),
        pieces: starts.iter().zip(ends).map(piece).collect(),
        whole: Some(document),
    })
}

/// A line of a text.
struct Line<'a> {
    /// Lines before it.
    index: u64,
    /// Bytes before it.
    start: usize,
    text: &'a str,
}

fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    let mut start = 0;
    (0..).zip(text.split_inclusive('\n')).map(move |(index, text)| {
        let line = Line { index, start, text };
        start += text.len();
        line
    })
}

/// JSON objects one after the other.
fn json(text: &str) -> Result<Vec<Group<'_>>, Unreadable> {
    let mut lines = Lines { text, line: 1, offset: 0 };
    let mut groups = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<&RawValue>() {
        let value = value.map_err(|error| (error.line() as u64, error.to_string()))?;
        let whole = lines.piece(value);
        let group = serde_json::from_str::<Head<Vec<&RawValue>>>(value.get()).ok().and_then(|head| {
            let heading = Some(Heading::of_list(&head.kind, &head.api_version)?);
            let pieces = head.items.into_iter().map(|item| lines.piece(item)).collect();
            Some(Group { heading, pieces, whole: None })
        });
        groups.push(group.unwrap_or_else(|| Group::of(whole)));
    }
    Ok(groups)
}

/// Counts lines from one value of a text to the next.
struct Lines<'a> {
    text: &'a str,
    line: u64,
    offset: usize,
}

impl<'a> Lines<'a> {
    fn piece(&mut self, value: &'a RawValue) -> Piece<'a> {
        let text = value.get();
        let offset = text.as_ptr().addr() - self.text.as_ptr().addr();
        let between = self.text.get(self.offset..offset).unwrap_or_default();
        self.line += between.bytes().filter(|byte| *byte == b'\n').count() as u64;
        self.offset = offset;
        Piece { text, line: self.line, syntax: Syntax::Json }
    }
}
