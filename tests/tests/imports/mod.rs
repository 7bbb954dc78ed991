//! Which file of a crate takes names from which, and where that goes in a circle.
//!
//! Files are read as tokens, so that strings and comments are no code and macros are. A name counts for the file that defines it, wherever
//! it is exported again; to export again (`pub use`) is to list and not to use. What stands under `#[cfg(test)]` does not count, nor do
//! methods and fields, which name no file.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Names from the crate's root down: a module, or something in one.
type Path = Vec<String>;

/// File, file that it takes names from, these names.
type Uses = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

#[derive(Default)]
struct Module {
    file: String,
    items: BTreeSet<String>,
    /// What `use` calls by a name of its own.
    aliases: BTreeMap<String, Path>,
    globs: Vec<Path>,
    /// Every path in its code, and every word that may be one; `pub use` aside.
    mentions: Vec<Path>,
}

/// What a path leads to.
#[derive(Clone, PartialEq)]
enum Target {
    Module(Path),
    ItemOf(String),
}

#[derive(Default)]
struct Crate {
    modules: BTreeMap<Path, Module>,
    /// Modules under `#[cfg(test)]`.
    tests: BTreeSet<Path>,
}

/// The circles between these files of one crate (path under `src`, text), one line each: `a.rs -> b.rs -> a.rs`, and the names that tie them.
pub(crate) fn circles(files: &[(String, String)]) -> Vec<String> {
    let mut all = Crate::default();
    for (file, text) in files {
        let module = all.modules.entry(module_of(file)).or_default();
        module.file.clone_from(file);
        let tokens: TokenStream = text.parse().unwrap_or_else(|e| panic!("{file}: {e}"));
        all.read(tokens, &module_of(file), file, true);
    }
    let uses = all.uses();
    let mut found = BTreeMap::new();
    for start in uses.keys() {
        if let Some(circle) = shortest(&uses, start) {
            let members: BTreeSet<&String> = circle.iter().collect();
            found.entry(members.into_iter().cloned().collect::<Vec<_>>()).or_insert(circle);
        }
    }
    let tie = |pair: &[String]| uses[&pair[0]][&pair[1]].iter().cloned().collect::<Vec<_>>().join(" ");
    found
        .values()
        .map(|circle| format!("{} ({})", circle.join(" -> "), circle.windows(2).map(tie).collect::<Vec<_>>().join(", ")))
        .collect()
}

fn module_of(file: &str) -> Path {
    let stem = file.trim_end_matches(".rs");
    let stem = stem.strip_suffix("/mod").unwrap_or(stem);
    if ["lib", "main"].contains(&stem) { Path::new() } else { stem.split('/').map(String::from).collect() }
}

/// The shortest way from `start` back to it.
fn shortest(uses: &Uses, start: &str) -> Option<Vec<String>> {
    let mut ways = VecDeque::from([vec![start.to_string()]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for next in uses.get(way.last()?).into_iter().flat_map(BTreeMap::keys) {
            let mut longer = way.clone();
            longer.push(next.clone());
            if next == start {
                return Some(longer);
            }
            if seen.insert(next.clone()) {
                ways.push_back(longer);
            }
        }
    }
    None
}

fn is_punct(token: Option<&TokenTree>, c: char) -> bool {
    matches!(token, Some(TokenTree::Punct(p)) if p.as_char() == c)
}

fn ident(token: Option<&TokenTree>) -> Option<String> {
    match token {
        Some(TokenTree::Ident(word)) => Some(word.to_string()),
        _ => None,
    }
}

/// Whether `::` stands at `i`.
fn is_colons(tokens: &[TokenTree], i: usize) -> bool {
    is_punct(tokens.get(i), ':') && is_punct(tokens.get(i + 1), ':')
}

/// The tokens at `i` and after it that are an item: up to a semicolon, or a body.
fn item_end(tokens: &[TokenTree], mut i: usize) -> usize {
    let braces = ident(tokens.get(i)).is_none_or(|word| word != "use");
    while let Some(token) = tokens.get(i) {
        i += 1;
        match token {
            TokenTree::Punct(p) if p.as_char() == ';' => break,
            TokenTree::Group(g) if braces && g.delimiter() == Delimiter::Brace => break,
            _ => {}
        }
    }
    i
}

const ITEMS: [&str; 9] = ["fn", "struct", "enum", "union", "trait", "type", "const", "static", "macro_rules"];

impl Crate {
    /// Reads the tokens of `module`; `outside` of all bodies, where items are the module's own.
    fn read(&mut self, tokens: TokenStream, module: &Path, file: &str, outside: bool) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut public = false;
        let mut i = 0;
        while i < tokens.len() {
            let start = i;
            i += 1;
            match &tokens[start] {
                TokenTree::Punct(p) if p.as_char() == '#' => {
                    i += usize::from(is_punct(tokens.get(i), '!'));
                    let test = tokens.get(i).is_some_and(|attribute| attribute.to_string().replace(' ', "") == "[cfg(test)]");
                    i += 1;
                    if test {
                        while is_punct(tokens.get(i), '#') {
                            i += 2;
                        }
                        let end = item_end(&tokens, i);
                        if let Some(at) = (i..end).find(|&at| ident(tokens.get(at)).is_some_and(|word| word == "mod")) {
                            self.tests.extend(ident(tokens.get(at + 1)).map(|name| child(module, &name)));
                        }
                        i = end;
                    }
                }
                TokenTree::Group(group) => self.read(group.stream(), module, file, false),
                TokenTree::Ident(word) => {
                    let word = word.to_string();
                    match word.as_str() {
                        "pub" => {
                            public = true;
                            i += usize::from(matches!(tokens.get(i), Some(TokenTree::Group(_))));
                            continue;
                        }
                        "use" if !is_punct(tokens.get(i), '<') => {
                            let end = item_end(&tokens, start);
                            self.read_use(&tokens[i..end - 1], &Path::new(), module, public);
                            i = end;
                        }
                        "mod" if outside => {
                            let name = ident(tokens.get(i)).unwrap_or_default();
                            if let Some(TokenTree::Group(group)) = tokens.get(i + 1) {
                                let inner = child(module, &name);
                                self.modules.entry(inner.clone()).or_default().file = file.into();
                                self.read(group.stream(), &inner, file, true);
                            }
                            i += 2;
                        }
                        keyword if outside && ITEMS.contains(&keyword) => {
                            let at = i + usize::from(is_punct(tokens.get(i), '!'));
                            let name = ident(tokens.get(at)).filter(|name| !ITEMS.contains(&name.as_str()) && name != "unsafe");
                            if let Some(name) = name {
                                self.of(module).items.insert(name);
                                i = at + 1;
                            }
                        }
                        _ => i = self.read_path(&tokens, start, module),
                    }
                }
                _ => {}
            }
            public = false;
        }
    }

    fn of(&mut self, module: &Path) -> &mut Module {
        self.modules.entry(module.clone()).or_default()
    }

    /// A path in code, or a word that can be an item; returns where it ends.
    fn read_path(&mut self, tokens: &[TokenTree], start: usize, module: &Path) -> usize {
        let (mut path, mut i) = (Path::new(), start);
        while let Some(name) = ident(tokens.get(i)) {
            path.push(name);
            i += 1;
            if !is_colons(tokens, i) {
                break;
            }
            i += 2;
        }
        let before = start.checked_sub(1).and_then(|at| tokens.get(at));
        // One word may be a variable's name, unless it is called or written as a type.
        let called =
            is_punct(tokens.get(i), '!') || matches!(tokens.get(i), Some(TokenTree::Group(g)) if g.delimiter() == Delimiter::Parenthesis);
        let item = path.len() > 1 || called || path[0].starts_with(char::is_uppercase);
        let member = is_punct(before, '.') || is_punct(before, '\'') || start > 1 && is_colons(tokens, start - 2);
        if item && !member {
            self.of(module).mentions.push(path);
        }
        i.max(start + 1)
    }

    /// The leaves of a tree of `use` below `prefix`.
    fn read_use(&mut self, tokens: &[TokenTree], prefix: &Path, module: &Path, public: bool) {
        for branch in tokens.split(|token| is_punct(Some(token), ',')) {
            let (mut path, mut alias) = (prefix.clone(), None);
            let mut words = branch.iter();
            while let Some(token) = words.next() {
                match token {
                    TokenTree::Ident(word) if *word == "as" => alias = ident(words.next()),
                    TokenTree::Ident(word) => path.push(word.to_string()),
                    TokenTree::Group(group) => {
                        let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                        self.read_use(&inner, &path, module, public);
                        path.clear();
                    }
                    TokenTree::Punct(p) if p.as_char() == '*' => {
                        self.of(module).globs.push(path.clone());
                        path.clear();
                    }
                    _ => {}
                }
            }
            // `a::{self}` is `a`.
            if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                path.pop();
            }
            if let Some(last) = path.last().cloned() {
                if !public {
                    self.of(module).mentions.push(path.clone());
                }
                self.of(module).aliases.insert(alias.unwrap_or(last), path);
            }
        }
    }

    /// What `path` means in `module`.
    fn resolve(&self, path: &[String], module: &Path, depth: usize) -> Option<Target> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Target::Module(Path::new()),
            "self" => Target::Module(module.clone()),
            "super" => Target::Module(module.split_last()?.1.to_vec()),
            name => self.lookup(name, module, depth)?,
        };
        while let (Target::Module(inside), Some((name, more))) = (&at, rest.split_first()) {
            at = match name.as_str() {
                "super" => Target::Module(inside.split_last()?.1.to_vec()),
                // What no line defines comes of a macro of the module's own.
                name => self.lookup(name, inside, depth).unwrap_or_else(|| Target::ItemOf(self.modules[inside].file.clone())),
            };
            rest = more;
        }
        Some(at)
    }

    fn lookup(&self, name: &str, module: &Path, depth: usize) -> Option<Target> {
        let known = self.modules.get(module).filter(|_| depth < 16)?;
        if known.items.contains(name) {
            return Some(Target::ItemOf(known.file.clone()));
        }
        if self.modules.contains_key(&child(module, name)) {
            return Some(Target::Module(child(module, name)));
        }
        // `use x::x` is not about itself.
        if let Some(path) = known.aliases.get(name).filter(|path| path[0] != name) {
            return self.resolve(path, module, depth + 1);
        }
        known.globs.iter().find_map(|glob| match self.resolve(glob, module, depth + 1)? {
            Target::Module(of) => self.lookup(name, &of, depth + 1),
            Target::ItemOf(_) => None,
        })
    }

    fn uses(&self) -> Uses {
        let mut uses = Uses::new();
        for (path, module) in &self.modules {
            if (0..=path.len()).any(|n| self.tests.contains(&path[..n])) {
                continue;
            }
            for mention in &module.mentions {
                if let Some(Target::ItemOf(file)) = self.resolve(mention, path, 0)
                    && file != module.file
                {
                    uses.entry(module.file.clone()).or_default().entry(file).or_default().extend(mention.last().cloned());
                }
            }
        }
        uses
    }
}

fn child(module: &[String], name: &str) -> Path {
    [module, &[name.to_string()]].concat()
}

#[test]
fn circles_are_found_through_exports_modules_and_bodies() {
    let circles =
        |files: &[(&str, &str)]| circles(&files.iter().map(|(file, text)| (format!("{file}.rs"), (*text).to_string())).collect::<Vec<_>>());
    let two = circles(&[("lib", "mod a; mod b;"), ("a", "use crate::b::X;"), ("b", "pub struct X; fn f(_: super::a::Y) {}")]);
    assert_eq!(two, ["a.rs -> b.rs -> a.rs (X, Y)"]);
    let exported = [
        ("lib", "mod a; mod b; mod c; pub use c::X as Z;"),
        ("a", "use crate::Z;"),
        ("b", "use crate::a; fn f() { format!(\"{}\", a::g()); }"),
        ("c", "use super::b::*; pub struct X(Y);"),
    ];
    assert_eq!(circles(&exported), Vec::<String>::new(), "b has no Y");
    let mut exported = exported;
    exported[2].1 = "use crate::a; pub struct Y; fn f() { format!(\"{}\", a::g()); }";
    assert_eq!(circles(&exported), ["a.rs -> c.rs -> b.rs -> a.rs (Z, Y, g)"]);
    let parent = |body| circles(&[("lib", "mod m;"), ("m/mod", body), ("m/child", "use super::Kind; pub fn run(_: Kind) {}")]);
    assert_eq!(parent("mod child; pub use child::run; pub enum Kind { A }"), Vec::<String>::new(), "a list of contents uses nothing");
    let circle = ["m/child.rs -> m/mod.rs -> m/child.rs (Kind, run)"];
    assert_eq!(parent("mod child; pub enum Kind { A } fn go() { child::run(Kind::A) }"), circle);
    assert_eq!(parent("mod child; pub use child::run; pub enum Kind { A } fn go() { run(Kind::A) }"), circle);
    let harmless = "// use crate::b::X;\nfn f(x: &T) -> &str { x.run(); \"crate::b::X\" }\n#[cfg(test)]\nmod tests { use crate::b::X; }";
    assert_eq!(circles(&[("lib", "mod a; mod b;"), ("a", harmless), ("b", "use crate::a::f; pub struct X;")]), Vec::<String>::new());
}
