//! PyTorch's pickles, without Python: a machine that knows dictionaries, tuples and tensors, and refuses everything else. Nothing is ever
//! executed.
//!
//! ```text
//! new      a zip file: NAME/data.pkl, and the elements of each storage in NAME/data/KEY, not compressed
//! old      four pickles (a magic number, a version, a note on the machine, the tensors), a list of keys, then of each
//!          key in that order the count as i64 and its elements
//! ```

use super::{Cursor, Kind, Place, Places, map, missing, one_file_archive};
use crate::error::{Error, Result};
use regard::MappedFile;
use regard_nn::tensors::{Source, Tensor};
use std::collections::{HashMap, HashSet};
use std::io::{Cursor as IoCursor, Read};
use std::ops::Range;
use std::path::Path;

/// What an old file begins with.
const MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];

type Reason = String;
type Parsed<T> = std::result::Result<T, Reason>;

fn cut() -> Reason {
    "it ends in the middle: it is cut short or damaged".to_owned()
}

fn odd() -> Reason {
    "it is damaged, or no file of tensors".to_owned()
}

fn too_much() -> Reason {
    "it describes more than a file of its length can hold: it is damaged".to_owned()
}

/// A value on the machine's stack, as its number.
type Id = u32;

/// Dimensions of a tensor, as many as PyTorch has; arguments of a call; bytes of a storage's key and of a function's name. A value may be
/// named again in two bytes: without limits a small file would describe lists and texts of any size.
const MOST_DIMENSIONS: usize = 64;
const MOST_ARGUMENTS: usize = 16;
const LONGEST_NAME: usize = 1024;

#[derive(Debug, Clone)]
enum Node {
    Nothing,
    Integer(i64),
    Text(String),
    /// A tuple or a list.
    Items(Vec<Id>),
    Pairs(Vec<(Id, Id)>),
    /// Something with a name; only a few may be called.
    Global(String),
    /// What its elements are, bytes of one, and its key.
    Storage {
        kind: Option<Kind>,
        width: usize,
        key: String,
    },
    Tensor(Box<Stored>),
    /// An instance of something, of no interest.
    Other,
}

/// A tensor that lies in a storage.
#[derive(Debug, Clone)]
struct Stored {
    kind: Option<Kind>,
    key: String,
    offset: usize,
    shape: Vec<usize>,
    /// Where its elements do not lie one after the other.
    strides: Option<Vec<usize>>,
}

struct Machine<'c, 'b> {
    cursor: &'c mut Cursor<'b>,
    nodes: Vec<Node>,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
    most: usize,
}

impl Machine<'_, '_> {
    fn node(&mut self, node: Node) -> Parsed<Id> {
        if self.nodes.len() >= self.most {
            return Err(too_much());
        }
        self.nodes.push(node);
        Ok((self.nodes.len() - 1) as Id)
    }

    fn push(&mut self, node: Node) -> Parsed<()> {
        let id = self.node(node)?;
        self.stack.push(id);
        Ok(())
    }

    fn pop(&mut self) -> Parsed<Id> {
        self.stack.pop().ok_or_else(odd)
    }

    fn since_mark(&mut self) -> Parsed<Vec<Id>> {
        let mark = self.marks.pop().ok_or_else(odd)?;
        if mark > self.stack.len() {
            return Err(odd());
        }
        Ok(self.stack.split_off(mark))
    }

    fn items(&self, id: Id) -> Parsed<&[Id]> {
        if let Node::Items(items) = &self.nodes[id as usize] { Ok(items) } else { Err(odd()) }
    }

    fn size(&self, id: Id) -> Parsed<usize> {
        if let Node::Integer(x) = self.nodes[id as usize] { usize::try_from(x).map_err(|_| odd()) } else { Err(odd()) }
    }

    fn arguments(&self, id: Id) -> Parsed<Vec<Id>> {
        self.items(id).and_then(|items| if items.len() <= MOST_ARGUMENTS { Ok(items.to_vec()) } else { Err(odd()) })
    }

    fn sizes(&self, id: Id) -> Parsed<Vec<usize>> {
        let items = self.items(id)?;
        if items.len() > MOST_DIMENSIONS {
            return Err(format!("it has a tensor of {} dimensions; at most {MOST_DIMENSIONS} are possible", items.len()));
        }
        items.iter().map(|id| self.size(*id)).collect()
    }

    fn text(&self, id: Id) -> Parsed<&str> {
        if let Node::Text(text) = &self.nodes[id as usize] { Ok(text) } else { Err(odd()) }
    }

    /// A text that is copied.
    fn name(&self, id: Id) -> Parsed<&str> {
        self.text(id).and_then(|text| if text.len() <= LONGEST_NAME { Ok(text) } else { Err(odd()) })
    }

    fn take(&mut self, count: usize) -> Parsed<&[u8]> {
        self.cursor.take(count).ok_or_else(cut)
    }

    fn string(&mut self, len: usize) -> Parsed<String> {
        String::from_utf8(self.take(len)?.to_vec()).map_err(|_| odd())
    }

    fn line(&mut self) -> Parsed<String> {
        let rest = &self.cursor.bytes[self.cursor.at..];
        // Names are short; a file of elements without a line's end is not searched through.
        let len = rest.iter().take(1024).position(|b| *b == b'\n').ok_or_else(cut)?;
        let line = self.string(len)?;
        self.take(1)?;
        Ok(line)
    }

    /// `('storage', type, key, where, count)`.
    fn persistent(&mut self) -> Parsed<()> {
        let id = self.pop()?;
        let items = self.arguments(id)?;
        if items.len() < 5 || self.text(items[0])? != "storage" {
            return Err(odd());
        }
        let Node::Global(name) = &self.nodes[items[1] as usize] else { return Err(odd()) };
        let (kind, width) = match name.as_str() {
            "torch FloatStorage" => (Some(Kind::F32), 4),
            "torch DoubleStorage" => (Some(Kind::F64), 8),
            "torch HalfStorage" => (Some(Kind::F16), 2),
            "torch BFloat16Storage" => (Some(Kind::Bf16), 2),
            "torch ByteStorage" | "torch CharStorage" | "torch BoolStorage" | "torch QInt8Storage" | "torch QUInt8Storage" => (None, 1),
            "torch ShortStorage" => (None, 2),
            "torch IntStorage" | "torch QInt32Storage" => (None, 4),
            "torch LongStorage" | "torch ComplexFloatStorage" => (None, 8),
            "torch ComplexDoubleStorage" => (None, 16),
            other => return Err(format!("it has a storage of type {other:?}, whose elements have an unknown size")),
        };
        let key = self.name(items[2])?.to_owned();
        self.push(Node::Storage { kind, width, key })
    }

    fn call(&mut self) -> Parsed<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let Node::Global(name) = &self.nodes[function as usize] else { return Err(odd()) };
        match name.as_str() {
            "collections OrderedDict" => self.push(Node::Pairs(Vec::new())),
            "torch._utils _rebuild_parameter" => {
                let tensor = *self.items(arguments)?.first().ok_or_else(odd)?;
                self.stack.push(tensor);
                Ok(())
            }
            "torch._utils _rebuild_tensor_v2" => {
                let items = self.arguments(arguments)?;
                let [storage, offset, shape, strides, ..] = items[..] else { return Err(odd()) };
                let Node::Storage { kind, key, .. } = self.nodes[storage as usize].clone() else { return Err(odd()) };
                let (offset, shape, strides) = (self.size(offset)?, self.sizes(shape)?, self.sizes(strides)?);
                let mut expected = 1usize;
                let mut contiguous = shape.len() == strides.len();
                for (&size, &stride) in shape.iter().zip(&strides).rev() {
                    contiguous &= size == 1 || stride == expected;
                    expected = expected.checked_mul(size).ok_or_else(odd)?;
                }
                self.push(Node::Tensor(Box::new(Stored { kind, key, offset, shape, strides: (!contiguous).then_some(strides) })))
            }
            other => Err(format!(
                "it would call {other:?}, and a pickle is never executed: save the model with safetensors (`model.save_pretrained(folder)`)"
            )),
        }
    }

    fn set(&mut self, target: Id, pairs: Vec<Id>) -> Parsed<()> {
        let new: Vec<(Id, Id)> = pairs.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect();
        match &mut self.nodes[target as usize] {
            Node::Pairs(all) => all.extend(new),
            Node::Other => {}
            _ => return Err(odd()),
        }
        Ok(())
    }

    /// Run one pickle up to its end.
    fn run(&mut self) -> Parsed<Id> {
        loop {
            let code = self.take(1)?[0];
            match code {
                0x80 => drop(self.take(1)?),
                0x95 => drop(self.take(8)?),
                b'.' => return self.pop(),
                b'(' => self.marks.push(self.stack.len()),
                b'0' => drop(self.pop()?),
                b'1' => drop(self.since_mark()?),
                b'2' => {
                    let top = *self.stack.last().ok_or_else(odd)?;
                    self.stack.push(top);
                }
                b'N' => self.push(Node::Nothing)?,
                0x88 => self.push(Node::Integer(1))?,
                0x89 => self.push(Node::Integer(0))?,
                b'J' => {
                    let x = self.cursor.i32().ok_or_else(cut)?;
                    self.push(Node::Integer(i64::from(x)))?;
                }
                b'K' => {
                    let x = self.take(1)?[0];
                    self.push(Node::Integer(i64::from(x)))?;
                }
                b'M' => {
                    let x = u16::from_le_bytes(self.cursor.array().ok_or_else(cut)?);
                    self.push(Node::Integer(i64::from(x)))?;
                }
                0x8a => {
                    let len = usize::from(self.take(1)?[0]);
                    let bytes = self.take(len)?;
                    let mut wide = [if bytes.last().is_some_and(|b| *b >= 128) { 255 } else { 0 }; 8];
                    let fits = len <= 8;
                    bytes.iter().zip(&mut wide).for_each(|(from, to)| *to = *from);
                    self.push(if fits { Node::Integer(i64::from_le_bytes(wide)) } else { Node::Other })?;
                }
                b'G' => {
                    self.take(8)?;
                    self.push(Node::Other)?;
                }
                b'X' | b'T' | b'B' => {
                    let len = self.cursor.u32().ok_or_else(cut)? as usize;
                    let text = self.string(len)?;
                    self.push(Node::Text(text))?;
                }
                0x8c | b'U' | b'C' => {
                    let len = usize::from(self.take(1)?[0]);
                    let text = self.string(len)?;
                    self.push(Node::Text(text))?;
                }
                b'c' => {
                    let name = format!("{} {}", self.line()?, self.line()?);
                    self.push(Node::Global(name))?;
                }
                0x93 => {
                    let (name, module) = (self.pop()?, self.pop()?);
                    let name = format!("{} {}", self.name(module)?, self.name(name)?);
                    self.push(Node::Global(name))?;
                }
                b'}' => self.push(Node::Pairs(Vec::new()))?,
                b']' | b')' => self.push(Node::Items(Vec::new()))?,
                b't' | b'l' => {
                    let items = self.since_mark()?;
                    self.push(Node::Items(items))?;
                }
                b'd' => {
                    let items = self.since_mark()?;
                    let id = self.node(Node::Pairs(Vec::new()))?;
                    self.set(id, items)?;
                    self.stack.push(id);
                }
                0x85..=0x87 => {
                    let count = usize::from(code - 0x84);
                    let first = self.stack.len().checked_sub(count).ok_or_else(odd)?;
                    let items = self.stack.split_off(first);
                    self.push(Node::Items(items))?;
                }
                b'q' => {
                    let number = u32::from(self.take(1)?[0]);
                    let top = *self.stack.last().ok_or_else(odd)?;
                    self.memo.insert(number, top);
                }
                b'r' => {
                    let number = self.cursor.u32().ok_or_else(cut)?;
                    let top = *self.stack.last().ok_or_else(odd)?;
                    self.memo.insert(number, top);
                }
                0x94 => {
                    let top = *self.stack.last().ok_or_else(odd)?;
                    self.memo.insert(self.memo.len() as u32, top);
                }
                b'h' => {
                    let number = u32::from(self.take(1)?[0]);
                    let known = *self.memo.get(&number).ok_or_else(odd)?;
                    self.stack.push(known);
                }
                b'j' => {
                    let number = self.cursor.u32().ok_or_else(cut)?;
                    let known = *self.memo.get(&number).ok_or_else(odd)?;
                    self.stack.push(known);
                }
                b'Q' => self.persistent()?,
                b'R' => self.call()?,
                0x81 => {
                    self.pop()?;
                    self.pop()?;
                    self.push(Node::Other)?;
                }
                // The state of an object: of a dictionary of tensors its version numbers, of no interest.
                b'b' => drop(self.pop()?),
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    let target = *self.stack.last().ok_or_else(odd)?;
                    self.set(target, vec![key, value])?;
                }
                b'u' => {
                    let pairs = self.since_mark()?;
                    let target = *self.stack.last().ok_or_else(odd)?;
                    self.set(target, pairs)?;
                }
                b'a' | b'e' => {
                    let new = if code == b'a' { vec![self.pop()?] } else { self.since_mark()? };
                    let target = *self.stack.last().ok_or_else(odd)?;
                    if let Node::Items(items) = &mut self.nodes[target as usize] {
                        items.extend(new);
                    }
                }
                other => return Err(format!("it has the instruction {other:#04x}, which no file of tensors needs")),
            }
        }
    }

    /// The tensors of a dictionary by name; of one inside it, where that is what it is about. Each dictionary is looked into once, at the
    /// smallest depth.
    fn tensors(&self, root: Id) -> Parsed<Vec<(String, Stored)>> {
        let (mut level, mut seen) = (vec![root], HashSet::from([root]));
        for _ in 0..4 {
            let mut below = Vec::new();
            for id in level {
                let Node::Pairs(pairs) = &self.nodes[id as usize] else { continue };
                let found = self.tensors_of(pairs)?;
                if !found.is_empty() {
                    return Ok(found);
                }
                // Checkpoints of trainings have the weights in a dictionary of their own, beside others.
                let named = |key: Id| self.text(key).is_ok_and(|key| key == "model" || key == "module" || key.ends_with("state_dict"));
                below.extend(pairs.iter().filter(|(key, value)| named(*key) && seen.insert(*value)).map(|(_, value)| *value));
            }
            level = below;
        }
        Ok(Vec::new())
    }

    fn tensors_of(&self, pairs: &[(Id, Id)]) -> Parsed<Vec<(String, Stored)>> {
        // Names of one dictionary differ, so the file has each of them.
        let mut left = self.cursor.bytes.len();
        let (mut found, mut places) = (Vec::new(), HashMap::new());
        for (key, value) in pairs {
            let (Node::Text(name), Node::Tensor(tensor)) = (&self.nodes[*key as usize], &self.nodes[*value as usize]) else { continue };
            left = left.checked_sub(name.len()).ok_or_else(too_much)?;
            // Of two with the same name the last counts.
            match places.insert(name, found.len()) {
                None => found.push((name, tensor)),
                Some(place) => {
                    found[place].1 = tensor;
                    places.insert(name, place);
                }
            }
        }
        Ok(found.into_iter().map(|(name, tensor)| (name.clone(), (**tensor).clone())).collect())
    }
}

fn machine<'c, 'b>(cursor: &'c mut Cursor<'b>, file: usize) -> Machine<'c, 'b> {
    Machine { cursor, nodes: Vec::new(), stack: Vec::new(), marks: Vec::new(), memo: HashMap::new(), most: file / 16 + 1024 }
}

/// A mapped file.
#[derive(Debug)]
pub struct Pickle {
    bytes: MappedFile,
    places: Places,
    /// Tensors that are there and cannot be used, and why.
    refused: HashMap<String, String>,
    /// Tensors whose elements did not lie one after the other: in order, once.
    ordered: HashMap<usize, Vec<f32>>,
}

/// What a file has: places, strides of those that are not in order, and what cannot be used.
#[derive(Default)]
struct Found {
    places: Vec<Place>,
    strided: Vec<(usize, Vec<usize>)>,
    refused: HashMap<String, String>,
}

/// The elements of a tensor with strides, in order; those of `place` begin where its bytes do.
fn in_order(place: &Place, strides: &[usize], file: &[u8]) -> Option<Vec<f32>> {
    let numbers = place.kind.numbers(file.get(place.bytes.clone())?)?;
    let mut all = vec![0f32; numbers.len()];
    numbers.widen(0..all.len(), &mut all);
    let count = place.shape.iter().product::<usize>();
    let mut ordered = Vec::with_capacity(count);
    for mut number in 0..count {
        let mut at = 0usize;
        for (&size, &stride) in place.shape.iter().zip(strides).rev() {
            at = at.checked_add((number % size).checked_mul(stride)?)?;
            number /= size;
        }
        ordered.push(*all.get(at)?);
    }
    Some(ordered)
}

/// Tensors with the ranges of their storages.
fn place(tensors: Vec<(String, Stored)>, storages: &HashMap<String, Range<usize>>) -> Parsed<Found> {
    let mut found = Found::default();
    for (name, tensor) in tensors {
        let Some(kind) = tensor.kind else {
            found.refused.insert(name, "its elements are integers".to_owned());
            continue;
        };
        let storage = storages.get(&tensor.key).ok_or_else(|| format!("the data of {name} is missing"))?;
        let count = tensor.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).ok_or_else(odd)?;
        let start = kind.bytes(tensor.offset).and_then(|n| n.checked_add(storage.start)).ok_or_else(odd)?;
        let end = kind.bytes(count).and_then(|n| n.checked_add(start)).filter(|end| *end <= storage.end);
        let end = end.ok_or_else(|| format!("its tensor {name} of shape {:?} is longer than its data", tensor.shape))?;
        if let Some(strides) = tensor.strides {
            found.strided.push((found.places.len(), strides));
        }
        found.places.push(Place { name, shape: tensor.shape, kind, bytes: start..end });
    }
    if found.places.is_empty() {
        return Err(
            "it has no dictionary of tensors: neither at the top nor under state_dict, model_state_dict, model or module".to_owned()
        );
    }
    Ok(found)
}

fn parse_old(bytes: &[u8]) -> Parsed<Found> {
    let mut cursor = Cursor::new(bytes);
    for _ in 0..3 {
        machine(&mut cursor, bytes.len()).run()?;
    }
    let (tensors, widths) = {
        let mut machine = machine(&mut cursor, bytes.len());
        let root = machine.run()?;
        let width = |node: &Node| if let Node::Storage { width, key, .. } = node { Some((key.clone(), *width)) } else { None };
        let widths: HashMap<String, usize> = machine.nodes.iter().filter_map(width).collect();
        (machine.tensors(root)?, widths)
    };
    let keys: Vec<String> = {
        let mut machine = machine(&mut cursor, bytes.len());
        let root = machine.run()?;
        machine.items(root)?.iter().map(|id| machine.text(*id).map(str::to_owned)).collect::<Parsed<_>>()?
    };
    let mut storages = HashMap::new();
    for key in keys {
        let count = usize::try_from(cursor.u64().ok_or_else(cut)?).map_err(|_| cut())?;
        let width =
            *widths.get(&key).ok_or_else(|| format!("its storage {key} belongs to no tensor: the size of its elements is unknown"))?;
        let start = cursor.at;
        cursor.take(count.checked_mul(width).ok_or_else(cut)?).ok_or_else(cut)?;
        storages.insert(key, start..cursor.at);
    }
    place(tensors, &storages)
}

/// Bytes from the end in which a zip file has the magic number of its end record.
const ZIP_END: usize = 22 + (u16::MAX as usize);

fn parse_zip(bytes: &[u8]) -> Parsed<Found> {
    // The library would search the whole file.
    if !bytes[bytes.len().saturating_sub(ZIP_END)..].windows(4).any(|four| four == b"PK\x05\x06") {
        return Err(cut());
    }
    let refused = |e: zip::result::ZipError| format!("it is cut short or no zip file ({e})");
    let mut archive = zip::ZipArchive::new(IoCursor::new(bytes)).map_err(refused)?;
    let names: Vec<String> = archive.file_names().map(str::to_owned).collect();
    let root =
        names.iter().find_map(|name| name.strip_suffix("data.pkl")).ok_or("it has no data.pkl: it is no file of PyTorch's")?.to_owned();
    let mut storages = HashMap::new();
    for name in names.iter().filter(|name| name.starts_with(&format!("{root}data/"))) {
        let file = archive.by_name(name).map_err(refused)?;
        if file.compression() != zip::CompressionMethod::Stored {
            return Err(format!("its part {name} is compressed"));
        }
        let start = usize::try_from(file.data_start().ok_or_else(cut)?).map_err(|_| cut())?;
        let end =
            usize::try_from(file.size()).ok().and_then(|len| start.checked_add(len)).filter(|end| *end <= bytes.len()).ok_or_else(cut)?;
        storages.insert(name[root.len() + 5..].to_owned(), start..end);
    }
    let mut pickle = Vec::new();
    archive.by_name(&format!("{root}data.pkl")).map_err(refused)?.take(bytes.len() as u64).read_to_end(&mut pickle).map_err(|_| cut())?;
    let mut cursor = Cursor::new(&pickle);
    let mut machine = machine(&mut cursor, bytes.len());
    let top = machine.run()?;
    let tensors = machine.tensors(top)?;
    place(tensors, &storages)
}

fn parse(bytes: &[u8]) -> Parsed<Found> {
    if bytes.starts_with(b"PK") { parse_zip(bytes) } else { parse_old(bytes) }
}

/// Read any bytes as a file would be: for tests that throw damaged ones at it.
#[doc(hidden)]
pub fn parses(bytes: &[u8]) -> bool {
    parse(bytes).is_ok()
}

impl Pickle {
    /// Whether bytes begin as such a file.
    pub fn sniff(bytes: &[u8]) -> bool {
        bytes.starts_with(b"PK\x03\x04") || (bytes.first() == Some(&0x80) && bytes.get(4..14) == Some(&MAGIC))
    }

    /// Map a file.
    ///
    /// # Errors
    /// When it cannot be read, is damaged, or wants something executed.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = map(path)?;
        let Found { places, strided, refused } = parse(bytes.as_ref()).map_err(|reason| Error::damaged(path, reason))?;
        let (mut ordered, mut left) = (HashMap::new(), bytes.as_ref().len());
        for (number, strides) in strided {
            let place = &places[number];
            // Tensors may share their elements; in order, each has its own.
            let count = place.shape.iter().product::<usize>();
            left = left.checked_sub(count).ok_or_else(|| Error::damaged(path, too_much()))?;
            let all = in_order(place, &strides, bytes.as_ref());
            ordered.insert(number, all.ok_or_else(|| Error::damaged(path, format!("its tensor {} reaches beyond its data", place.name)))?);
        }
        Ok(Self { bytes, places: Places::new(places), refused, ordered })
    }
}

impl Source for Pickle {
    fn tensor(&self, name: &str) -> regard_nn::Result<Tensor<'_>> {
        match (self.places.get(name), self.refused.get(name)) {
            (Some((number, place)), _) => match self.ordered.get(&number) {
                Some(numbers) => Ok(Tensor { shape: place.shape.clone(), numbers: <f32 as regard_nn::Float>::numbers(numbers) }),
                None => place.tensor(self.bytes.as_ref()),
            },
            (None, Some(reason)) => Err(regard_nn::Error::Tensor { name: name.to_owned(), reason: reason.clone() }),
            (None, None) => Err(missing(name)),
        }
    }
}

one_file_archive!(Pickle);
