//! Log filters: a misspelt level is a filter of its own to `EnvFilter` (one for the events of a crate
//! called `inof`), and the log then stays empty.

/// What events can come from: the crates of this program.
const TARGETS: [&str; 7] = [
    "rowmill_rowmilld",
    "rowmill_port",
    "rowmill_engine",
    "rowmill_table",
    "rowmill_pooling",
    "rowmill_arena",
    "rowmill_wire",
];

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// What is wrong with a filter, and what to write instead.
pub fn filter_fault(filter: &str) -> Option<String> {
    if filter.parse::<tracing_subscriber::EnvFilter>().is_err() {
        return Some(format!(
            "`{filter}` is no filter; write a level such as `info`, or a list such as \
             `info,rowmill_port=debug`"
        ));
    }
    let directives = filter.split(',').map(str::trim).filter(|d| !d.is_empty());
    for directive in directives {
        // TARGET[SPAN]=LEVEL, all but one of which can be missing. A span's fields may hold `=` and `,`;
        // what follows such a comma is taken for a directive of its own here, and none has any use.
        let (target, level) = match directive.rsplit_once('=') {
            Some((target, level)) => (target, level),
            None => (directive, directive),
        };
        let is_level = |text: &str| {
            LEVELS.iter().any(|level| level.eq_ignore_ascii_case(text))
                || text.parse::<u8>().is_ok_and(|n| n <= 5)
        };
        let target = target.split('[').next().unwrap_or_default();
        let is_target = TARGETS.iter().any(|known| {
            let beyond = target.strip_prefix(known);
            beyond.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
                || (target.starts_with("rowmill") && known.starts_with(target))
        });
        let is_pair = directive.contains('=');
        let good = match (is_pair, is_target || target.is_empty(), is_level(level)) {
            (true, target, level) => target && level,
            (false, target, level) => (target && !directive.is_empty()) || level,
        };
        if !good {
            return Some(format!(
                "`{directive}` is neither a level ({}) nor a part of this program ({})",
                LEVELS.join(", "),
                TARGETS.join(", ")
            ));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_there_is_can_be_filtered() {
        for good in [
            "info",
            "WARN",
            "off",
            "3",
            "",
            "info,rowmill_port=debug",
            "warn,rowmill_rowmilld::serve=trace",
            "rowmill=debug",
            "rowmill_port",
        ] {
            assert_eq!(filter_fault(good), None, "{good}");
        }
        for bad in [
            "inof",
            "info,inof",
            "rowmill_prot=debug",
            "rowmill_port=inof",
            "rowmill_portx=info",
            "hyper=debug",
            "info=rowmill_port",
            "a=b=c",
            "9",
        ] {
            let fault = filter_fault(bad).unwrap_or_else(|| panic!("{bad}"));
            assert!(fault.contains('`'), "{fault}");
        }
    }
}
