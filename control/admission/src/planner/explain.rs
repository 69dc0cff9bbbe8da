//! What is known and why something is as it is, for people.

use std::collections::BTreeMap;

use rowmill_link::Admission;
use serde::{Deserialize, Serialize};

use super::dataplane::{Dataplane, Holding, Move};
use super::settings::Settings;
use super::table::{PINNED_MAX, Table};
use super::{Planner, TURN_NS, asked};
use crate::curve::Curve;

/// What is gained or lost is told of so many bytes.
const MIB: u64 = 1 << 20;

/// A dataplane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct DataplaneView {
    /// Its name.
    pub name: String,
    /// Drawn at each of its starts.
    pub instance: String,
    /// Its program's version.
    pub version: String,
    /// What it serves.
    pub model: String,
    /// See there.
    pub generation: String,
    /// Seconds since it was heard of.
    pub heard_s_ago: u64,
    /// Bytes of the arena that its cached tables share.
    pub arena_bytes: u64,
    /// Those that none of them has.
    pub free_bytes: u64,
    /// The last policy that was published for it, `EPOCH.VERSION`.
    pub published: Option<String>,
    /// The one that it follows, and whose that is.
    pub follows: Option<String>,
    /// See there.
    pub control: Option<String>,
    /// What of it could not be done.
    pub refused: Vec<String>,
    /// What becomes of its shares, or what they wait for.
    pub state: String,
    /// Its cached tables.
    pub shares: Vec<ShareView>,
}

/// A table's share of a dataplane's arena.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ShareView {
    /// The dataplane.
    pub dataplane: String,
    /// The table.
    pub table: String,
    /// Its bytes, and those that it is to have where that was decided.
    pub cache_bytes: u64,
    /// See above.
    pub wanted_bytes: Option<u64>,
    /// Rows that it has room for, and those that are there.
    pub cache_rows: u64,
    /// See above.
    pub held_rows: u64,
    /// Whether it is on its way to another size.
    pub resizing: bool,
    /// Lookups a second, where they are known.
    pub lookups_per_s: Option<f64>,
    /// The part of them that hits, and what the curve lets expect: less, where requests look a row up several times. Nothing is expected
    /// where only pinned rows come: the curve is that of a cache which takes what is looked up.
    pub found: Option<f64>,
    /// See above.
    pub expected: Option<f64>,
    /// Hits a second that the next MiB would gain, and that the last one gains. None as above.
    pub gain_per_mib: Option<f64>,
    /// See above.
    pub loss_per_mib: Option<f64>,
    /// Which rows come, as it was told last: only pinned ones once some of those are known.
    pub admission: Admission,
    /// Rows that are pinned.
    pub pinned: u64,
    /// How many are to be, where the table's settings want some.
    pub pins: Option<PinsView>,
    /// Its last changes, the latest last.
    pub moves: Vec<ShareMove>,
}

/// How many rows of a share are to be pinned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PinsView {
    /// Rows for which there is room in the part of the share that is to be pinned.
    pub asked: u64,
    /// Rows of a table that are pinned at most.
    pub most: u64,
    /// Rows that were sampled twice lately, of those that can be pinned: only rows that are sampled can.
    pub sampled: u64,
    /// Why fewer are pinned than were asked for, and what that means, in a sentence; or that nothing else comes into the rest of the share.
    pub short: Option<String>,
}

/// A change of a share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ShareMove {
    /// Seconds since then.
    pub s_ago: u64,
    /// Bytes before and after.
    pub from_bytes: u64,
    /// See above.
    pub to_bytes: u64,
    /// Why.
    pub why: String,
}

/// A table and what is known of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct TableView {
    /// The model that it belongs to.
    pub model: String,
    /// Its name.
    pub table: String,
    /// The dataplane that samples it.
    pub sampled_by: Option<String>,
    /// The part of its rows that is sampled.
    pub rate: f64,
    /// Samples that were taken, and those that were dropped on the way.
    pub samples: u64,
    /// See above.
    pub dropped: u64,
    /// Samples that stand behind the curve, where fewest do.
    pub weight: f64,
    /// Its hits by size, as far as they are known.
    pub curve: Vec<Tried>,
    /// Seconds since its popularity was last seen to be another one.
    pub shifted_s_ago: Option<u64>,
    /// What an operator wants of it.
    pub settings: Settings,
    /// Its shares.
    pub shares: Vec<ShareView>,
}

/// Settings of a table, whether a dataplane has it or not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SettingsView {
    /// The table's model.
    pub model: String,
    /// Its name.
    pub table: String,
    /// See there.
    pub settings: Settings,
    /// What of them has no effect as things are, each a sentence.
    pub warnings: Vec<String>,
}

/// A size and its hits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Tried {
    /// Rows that are cached.
    pub rows: u64,
    /// The part of lookups that hits.
    pub hits: f64,
}

/// A row of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RowView {
    /// Its number.
    pub row: u32,
    /// How often it was sampled lately, where what is longer ago counts less; none where it wasn't.
    pub sampled: Option<f32>,
    /// Dataplanes in which it is pinned.
    pub pinned_in: Vec<String>,
    /// Why it is in a cache, or is not, in a sentence.
    pub why: String,
}

impl Planner {
    /// All dataplanes that have reported, by name.
    pub fn dataplanes(&self, now_ns: u64) -> Vec<DataplaneView> {
        let views = self.dataplanes.iter();
        views
            .map(|(name, of)| self.dataplane_view(now_ns, name, of))
            .collect()
    }

    /// All tables that some dataplane caches, by model and name.
    pub fn tables(&self, now_ns: u64) -> Vec<TableView> {
        let views = self.tables.iter();
        views
            .map(|((model, name), of)| self.table_view(now_ns, model, name, of))
            .collect()
    }

    /// Settings of all tables that have some, also of those that no dataplane has.
    pub fn all_settings(&self) -> Vec<SettingsView> {
        let mut sums = BTreeMap::new();
        let views = self.settings.iter();
        views
            .map(|((model, table), settings)| self.view_of(model, table, settings, &mut sums))
            .collect()
    }

    /// Settings that a table would have.
    pub fn settings_view(&self, model: &str, name: &str, settings: &Settings) -> SettingsView {
        self.view_of(model, name, settings, &mut BTreeMap::new())
    }

    /// Bytes that the tables of a dataplane are to have at least by their settings.
    fn least_of(&self, of: &Dataplane) -> u64 {
        let least = of.tables.iter().filter_map(|(table, own)| {
            let key = (of.report.model.clone(), table.clone());
            Some(own.least(self.settings.get(&key)?.min_bytes?))
        });
        least.fold(0, u64::saturating_add)
    }

    /// The same, with what the settings of each dataplane's tables come to, as far as that is known.
    fn view_of(
        &self,
        model: &str,
        name: &str,
        settings: &Settings,
        sums: &mut BTreeMap<String, u64>,
    ) -> SettingsView {
        let serving = self.dataplanes.iter();
        let serving = serving.filter(|(_, of)| of.report.model == model);
        let holdings = serving.filter_map(|(of, own)| Some((of, own.tables.get(name)?)));
        let holdings: Vec<(&String, &Holding)> = holdings.collect();
        let mut warnings = Vec::new();
        if holdings.is_empty() {
            warnings.push(format!(
                "no dataplane that is known caches a table `{name}` of a model `{model}`: this has no effect until one does"
            ));
        }
        let table = self.tables.get(&(model.into(), name.into()));
        for (dataplane, own) in holdings {
            let pins = table.and_then(|table| pins(settings, table, own));
            if let Some(short) = pins.and_then(|pins| pins.short) {
                warnings.push(format!("{dataplane}: {short}"));
            }
            let Some(wanted) = settings.min_bytes else {
                continue;
            };
            let of = &self.dataplanes[dataplane];
            let all = *sums
                .entry(dataplane.clone())
                .or_insert_with(|| self.least_of(of));
            let key = (model.to_owned(), name.to_owned());
            let present = self.settings.get(&key).and_then(|of| of.min_bytes);
            let present = present.map_or(0, |least| own.least(least));
            let all = all
                .saturating_sub(present)
                .saturating_add(own.least(wanted));
            if all > of.report.arena_bytes {
                warnings.push(format!(
                    "{dataplane}: its tables are to have {all} bytes at least (min_bytes), and its arena has {}: it is not divided anew as long as that is so",
                    of.report.arena_bytes
                ));
            }
        }
        SettingsView {
            model: model.into(),
            table: name.into(),
            settings: settings.clone(),
            warnings,
        }
    }

    /// How many they are.
    pub fn tables_known(&self) -> usize {
        self.tables.len()
    }

    /// Dataplanes that follow another control plane than this, each with the other's name.
    pub fn strays<'p>(&'p self, control: &'p str) -> impl Iterator<Item = (&'p str, &'p str)> {
        self.dataplanes.iter().filter_map(move |(name, of)| {
            let other = &of.report.policy.as_ref()?.control;
            (other != control).then_some((name.as_str(), other.as_str()))
        })
    }

    /// A table that some dataplane caches.
    pub fn table(&self, now_ns: u64, model: &str, name: &str) -> Option<TableView> {
        let table = self.tables.get(&(model.into(), name.into()))?;
        Some(self.table_view(now_ns, model, name, table))
    }

    /// How many rows a table has that some dataplane caches.
    pub fn rows(&self, model: &str, name: &str) -> Option<u64> {
        self.tables.get(&(model.into(), name.into()))?;
        let serving = self.dataplanes.values();
        let serving = serving.filter(|of| of.report.model == model);
        let rows = serving.filter_map(|of| Some(of.tables.get(name)?.seen.rows));
        rows.max()
    }

    /// A row of a table that some dataplane caches.
    pub fn row(&self, model: &str, name: &str, row: u32) -> Option<RowView> {
        let table = self.tables.get(&(model.into(), name.into()))?;
        let sampled = table.frequent.of(row);
        let pins = |of: &Dataplane| {
            let mut tables = of.policy.iter().flat_map(|policy| &policy.tables);
            let table = tables.find(|table| table.table == name);
            of.report.model == model
                && table.is_some_and(|of| of.pinned.binary_search(&row).is_ok())
        };
        let pinned = self.dataplanes.iter().filter(|(_, of)| pins(of));
        let pinned_in: Vec<String> = pinned.map(|(name, _)| name.clone()).collect();
        let why = match (pinned_in.is_empty(), sampled) {
            (false, _) => "it is pinned: it is among the rows that were sampled most often, of which the table's settings want a part of its share".into(),
            (true, _) if self.keeps_out(model, name) => {
                "it is not pinned, and the table's settings let no other row come into a cache".into()
            }
            (true, Some(times)) => format!(
                "it is not pinned: whether it is in a cache is decided there, when it is looked up; it was sampled {times:.1} times lately"
            ),
            (true, None) => format!(
                "it is not pinned, and was not sampled lately: it is none of the {:.4} % of the rows that are sampled (which ones, only the dataplane's hash tells), or was not looked up, or rarely",
                100.0 * table.model.sampling().rate()
            ),
        };
        Some(RowView {
            row,
            sampled,
            pinned_in,
            why,
        })
    }

    /// Whether some dataplane takes no rows of a table but pinned ones.
    fn keeps_out(&self, model: &str, name: &str) -> bool {
        let of_model = self
            .dataplanes
            .values()
            .filter(|of| of.report.model == model);
        let mut tables = of_model.flat_map(|of| of.policy.iter().flat_map(|policy| &policy.tables));
        tables.any(|table| table.table == name && table.admission == Admission::Pinned)
    }

    fn dataplane_view(&self, now_ns: u64, name: &str, of: &Dataplane) -> DataplaneView {
        let applied = of.report.policy.as_ref();
        let shares = of.tables.iter();
        DataplaneView {
            name: name.into(),
            instance: of.report.instance.clone(),
            version: of.report.version.clone(),
            model: of.report.model.clone(),
            generation: of.report.generation.clone(),
            heard_s_ago: now_ns.saturating_sub(of.heard_ns) / TURN_NS,
            arena_bytes: of.report.arena_bytes,
            free_bytes: of.free_bytes(),
            published: of.policy.as_ref().map(|policy| policy.order.to_string()),
            follows: applied.map(|applied| applied.order.to_string()),
            control: applied.map(|applied| applied.control.clone()),
            refused: applied.map_or(Vec::new(), |applied| applied.refused.clone()),
            state: of.state.clone(),
            shares: shares
                .map(|(table, own)| self.share_view(now_ns, name, of, table, own))
                .collect(),
        }
    }

    fn table_view(&self, now_ns: u64, model: &str, name: &str, of: &Table) -> TableView {
        let serve = self
            .dataplanes
            .iter()
            .filter(|(_, of)| of.report.model == model);
        let shares = serve.filter_map(|(dataplane, of)| {
            let own = of.tables.get(name)?;
            Some(self.share_view(now_ns, dataplane, of, name, own))
        });
        let curve = of.model.curve();
        let points = curve.iter().flat_map(|curve| curve.points());
        let settings = self.settings.get(&(model.into(), name.into()));
        TableView {
            model: model.into(),
            table: name.into(),
            sampled_by: of.sampler.as_ref().map(|(name, _)| name.clone()),
            rate: of.model.sampling().rate(),
            samples: of.taken,
            dropped: of.dropped,
            weight: of.model.weight(),
            curve: points
                .map(|point| Tried {
                    rows: point.rows,
                    hits: point.hits,
                })
                .collect(),
            shifted_s_ago: of.shifted_ns.map(|at| now_ns.saturating_sub(at) / TURN_NS),
            settings: settings.cloned().unwrap_or_default(),
            shares: shares.collect(),
        }
    }

    fn share_view(
        &self,
        now_ns: u64,
        dataplane: &str,
        of: &Dataplane,
        name: &str,
        own: &Holding,
    ) -> ShareView {
        let table = self.tables.get(&(of.report.model.clone(), name.into()));
        let curve = table.and_then(|table| table.model.curve());
        let mut told = of.policy.iter().flat_map(|policy| &policy.tables);
        let admission = told
            .find(|table| table.table == name)
            .map_or(Admission::default(), |table| table.admission);
        // What only pinned rows are looked for in has another curve.
        let curve = curve.filter(|_| admission == Admission::Built);
        let marginal = |up: bool| Some(marginal(curve.as_ref()?, own, up));
        ShareView {
            dataplane: dataplane.into(),
            table: name.into(),
            cache_bytes: own.seen.cache_bytes,
            wanted_bytes: own.wanted_bytes,
            cache_rows: own.seen.cache_rows,
            held_rows: own.seen.held_rows,
            resizing: own.seen.resizing,
            lookups_per_s: own.lookups,
            found: own.found(),
            expected: curve.as_ref().map(|curve| curve.at(own.seen.cache_rows)),
            gain_per_mib: marginal(true),
            loss_per_mib: marginal(false),
            admission,
            pinned: own.seen.pinned,
            pins: table.and_then(|table| {
                let key = (of.report.model.clone(), name.into());
                pins(self.settings.get(&key)?, table, own)
            }),
            moves: own
                .moves
                .iter()
                .map(|moved| move_view(now_ns, moved))
                .collect(),
        }
    }
}

impl Holding {
    /// What is had at least of so many bytes: no more than all rows.
    fn least(&self, bytes: u64) -> u64 {
        bytes.min(self.seen.rows.saturating_mul(self.seen.slot_bytes))
    }
}

/// How many rows are to be pinned, where some are.
fn pins(settings: &Settings, table: &Table, own: &Holding) -> Option<PinsView> {
    if !settings.pins() {
        return None;
    }
    let asked = asked(settings, own);
    let (most, sampled) = (PINNED_MAX as u64, table.pinnable());
    let can = sampled.min(most);
    let only = settings.only_pinned();
    let fewer = (can < asked).then(|| {
        let rate = 100.0 * table.model.sampling().rate();
        let nothing_else = match only {
            Some(_) => "; nothing else comes into the rest, since admission is `pinned`: leave admission at `built`, or bound the share by max_bytes",
            None => "",
        };
        format!(
            "of {asked} rows that its pinned part has room for {can} can be pinned: {most} of a table at most, and of the {rate:.4} % of its rows that are sampled {sampled} were seen often enough{nothing_else}"
        )
    });
    // Where all can be pinned that are to be, and that is a small part.
    let short = fewer.or_else(|| {
        let part = only.filter(|&part| part < Settings::PINNED_SHARE_MAX)?;
        Some(format!(
            "{:.0} % of its share is for pinned rows, and nothing else comes into the rest, since admission is `pinned`: give a pinned_share of up to {}, or bound the share by max_bytes",
            100.0 * part,
            Settings::PINNED_SHARE_MAX
        ))
    });
    Some(PinsView {
        asked,
        most,
        sampled,
        short,
    })
}

/// Hits a second that the next MiB gains, or the last one.
fn marginal(curve: &Curve, own: &Holding, up: bool) -> f64 {
    let hull = curve.hull();
    let (rows, mib) = (own.seen.cache_rows, (MIB / own.seen.slot_bytes).max(1));
    let (from, to) = if up {
        (rows, rows + mib)
    } else {
        (rows.saturating_sub(mib), rows)
    };
    (hull.at(to) - hull.at(from)) * own.lookups.unwrap_or(0.0)
}

fn move_view(now_ns: u64, moved: &Move) -> ShareMove {
    ShareMove {
        s_ago: now_ns.saturating_sub(moved.at_ns) / TURN_NS,
        from_bytes: moved.from_bytes,
        to_bytes: moved.to_bytes,
        why: moved.why.clone(),
    }
}
