//! Which generations of a model its dataplanes are to hold, by operators' wishes.
//!
//! A generation is activated only when every dataplane of the model is heard of and holds it: so clients that name it are answered by all
//! of them from the moment on in which the first one tells of it. One that is not heard of may serve what it served, for ever: it is waited
//! for until it is forgotten, unless an operator leaves it out. One that comes later, or starts anew, is told the same and comes to it by itself.

use std::collections::BTreeMap;

use rowmill_link::GenerationsPolicy;
use serde::{Deserialize, Serialize};

use super::dataplane::Dataplane;
use super::{Planner, Refused, TURN_NS, claims};

/// Generations of a model that are held at a time: the one that is served, and another one on the way in or out.
const HELD_MAX: usize = 2;
/// Models whose generations are told of: more than dataplanes by default, each of which has one.
const MODELS_MAX: usize = 1024;

/// What an operator wants, and which dataplanes it may go without.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct GenerationRequest {
    /// See there.
    pub wish: GenerationWish,
    /// Names of dataplanes that are not heard of, and are not waited for until they are: what they serve meanwhile is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
}

/// What an operator wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub enum GenerationWish {
    /// The generation of this number is held beside the one that is served.
    Load(u64),
    /// It is served from now on, by all dataplanes of the model, each of which holds it.
    Activate(u64),
    /// The one is served again that was before the last that was activated.
    Rollback,
    /// It is held no more.
    Unload(u64),
    /// Each dataplane is left with what it has, and nothing is kept.
    Leave,
}

/// What is wanted of a model's dataplanes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ModelGenerations {
    /// Numbers of the generations that are held.
    pub held: Vec<u64>,
    /// The one of them that is served where none is named.
    pub newest: u64,
    /// The one that was before it, and is still held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// Names of dataplanes that were left out since they were not heard of, and have not been since.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<String>,
    /// How often one was to be loaded, or a wish was given again while a dataplane could not do it, or had not told that it has: it tries at once then.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tries: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde has it")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A model and its dataplanes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ModelView {
    /// Its name.
    pub model: String,
    /// What is wanted; none where dataplanes serve what their configurations say.
    pub wanted: Option<ModelGenerations>,
    /// Whether every dataplane that is known is heard of, and holds and serves that.
    pub settled: bool,
    /// Names of those that aren't, or don't, also of those that were left out.
    pub missing: Vec<String>,
    /// Its dataplanes.
    pub dataplanes: Vec<HoldingView>,
}

/// What a dataplane holds of its model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct HoldingView {
    /// Its name.
    pub dataplane: String,
    /// Seconds since it was heard of.
    pub heard_s_ago: u64,
    /// Numbers of the generations that it holds, the one that is served first.
    pub held: Vec<u64>,
    /// The last change of them, and how it stands.
    pub change: Option<String>,
    /// The last delta that was applied to each of those that it holds; none where it takes no deltas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deltas: Option<Vec<u64>>,
    /// What became of the last delta that it was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delta: Option<String>,
    /// That its deltas are others than those that are kept for it, a sentence for each generation.
    #[serde(default)]
    pub diverged: Vec<String>,
    /// Whether it has told something since it was told what is wanted now.
    #[serde(default)]
    pub answered: bool,
    /// What of that could not be done.
    pub refused: Vec<String>,
}

/// A dataplane that is known, and of which nothing has been heard for a while.
struct Unheard<'p> {
    name: &'p str,
    for_s: u64,
    /// What it was heard to serve last, or was told to.
    served: Option<u64>,
}

fn impossible<T>(why: String) -> Result<T, Refused> {
    Err(Refused::Generations(why))
}

impl ModelGenerations {
    /// Whether they can be.
    pub(super) fn check(&self) -> Result<(), Refused> {
        let [first, .., last] = match &self.held[..] {
            [only] => [*only, *only],
            [first, second] if first != second => [*first, *second],
            held => return impossible(format!("{} generations can't be held", held.len())),
        };
        for number in [first, last] {
            claims::is_within("a generation", number, 1, claims::ORDER_MAX)?;
        }
        let is_held = |number: u64| self.held.contains(&number);
        match is_held(self.newest) && self.before.is_none_or(is_held) {
            true => Ok(()),
            false => impossible("the newest generation is not held".into()),
        }
    }

    pub(super) fn policy(&self) -> GenerationsPolicy {
        GenerationsPolicy {
            held: self.held.clone(),
            newest: self.newest,
            tries: self.tries,
        }
    }

    fn is_done(&self, dataplane: &Dataplane) -> bool {
        let has = &dataplane.report.generations;
        has.first() == Some(&self.newest)
            && has.len() == self.held.len()
            && self.held.iter().all(|number| has.contains(number))
    }
}

impl Planner {
    /// What would be wanted of a model after a wish; none where it is left to its dataplanes.
    ///
    /// # Errors
    /// [`Refused::Generations`] where that can't be, with what to do.
    pub fn wish(
        &self,
        now_ns: u64,
        model: &str,
        wish: GenerationWish,
        without: &[String],
    ) -> Result<Option<ModelGenerations>, Refused> {
        let dataplanes = self.heard(now_ns, model);
        let known = self.generations.get(model).cloned();
        if wish == GenerationWish::Leave {
            return Ok(None);
        }
        let mut wanted = match known {
            Some(known) => known,
            None => {
                let activated = match wish {
                    GenerationWish::Activate(number) => Some(number),
                    _ => None,
                };
                served(model, &dataplanes, activated)?
            }
        };
        let mut unheard = self.unheard(now_ns, model);
        for name in without {
            if !unheard.iter().any(|of| of.name == name) {
                return impossible(match dataplanes.contains_key(&**name) {
                    true => format!("`{name}` is heard of: only what is not can be left out"),
                    false => {
                        format!(
                            "no dataplane `{name}` that serves `{model}` is known: see which are"
                        )
                    }
                });
            }
            wanted.without.push(name.clone());
        }
        wanted.without.sort_unstable();
        wanted.without.dedup();
        // What was left out is forgotten in the end.
        let is_left_out = |of: &Unheard| wanted.without.iter().any(|name| name == of.name);
        let (left_out, others): (Vec<Unheard>, _) = unheard.drain(..).partition(is_left_out);
        wanted.without = left_out.iter().map(|of| of.name.into()).collect();
        unheard = others;
        let is_stuck = dataplanes.values().any(|of| refusals(of).next().is_some());
        // What has failed is told a moment before it is refused, and is to be tried again as well.
        let lacks = |number| {
            let mut held = dataplanes.values().map(|of| &of.report.generations);
            held.any(|held| !held.contains(&number))
        };
        let (newest, is_held) = (wanted.newest, |number| wanted.held.contains(&number));
        match wish {
            GenerationWish::Load(number) if is_held(number) => {
                let again = is_stuck || lacks(number);
                wanted.tries = wanted.tries.wrapping_add(again.into());
            }
            GenerationWish::Load(number) => {
                claims::is_within("a generation", number, 1, claims::ORDER_MAX)?;
                if wanted.held.len() >= HELD_MAX {
                    let other = wanted.held.iter().find(|&&held| held != newest);
                    return impossible(format!(
                        "{HELD_MAX} generations of `{model}` are held, and no more can be: unload {} first",
                        other.unwrap_or(&newest)
                    ));
                }
                wanted.held.push(number);
                // Where it was wanted, failed and was not wanted any more since the last policy, it is to be tried again as well.
                wanted.tries = wanted.tries.wrapping_add(1);
            }
            GenerationWish::Activate(number) if number == newest => {
                unheard.retain(|of| of.served != Some(number));
                let other = unheard.first().and_then(|of| of.served);
                are_heard(&unheard, other.or(wanted.before))?;
                let awaited = dataplanes
                    .iter()
                    .filter(|(name, _)| !wanted.without.iter().any(|without| without == **name));
                let mut served = awaited.map(|(_, of)| of.report.generations.first());
                let again = is_stuck || served.any(|served| served != Some(&number));
                wanted.tries = wanted.tries.wrapping_add(again.into());
            }
            GenerationWish::Activate(number) => {
                if !is_held(number) {
                    return impossible(format!(
                        "generation {number} of `{model}` is not held: load it first"
                    ));
                }
                are_heard(&unheard, Some(newest))?;
                self.is_there(number, &dataplanes)?;
                (wanted.newest, wanted.before) = (number, Some(newest));
            }
            GenerationWish::Rollback => {
                let Some(before) = wanted.before else {
                    return impossible(format!(
                        "there is nothing to go back to: no generation of `{model}` that is held was served before {newest}"
                    ));
                };
                are_heard(&unheard, Some(newest))?;
                self.is_there(before, &dataplanes)?;
                (wanted.newest, wanted.before) = (before, None);
            }
            GenerationWish::Unload(number) if number == newest => {
                return impossible(format!(
                    "generation {number} of `{model}` is served: activate another one first"
                ));
            }
            GenerationWish::Unload(number) => {
                if !is_held(number) {
                    return impossible(format!("generation {number} of `{model}` is not held"));
                }
                let serves = |of: &&Dataplane| of.report.generations.first() == Some(&number);
                if let Some((name, _)) = dataplanes.iter().find(|(_, of)| serves(of)) {
                    return impossible(format!(
                        "`{name}` still serves generation {number}: try again when all of them serve {newest}"
                    ));
                }
                are_heard(&unheard, Some(number))?;
                wanted.held.retain(|&held| held != number);
                wanted.before = wanted.before.filter(|&before| before != number);
            }
            GenerationWish::Leave => {}
        }
        Ok(Some(wanted))
    }

    /// Takes what is wanted of a model from now on.
    pub(super) fn want(
        &mut self,
        model: String,
        wanted: Option<ModelGenerations>,
    ) -> Result<(), Refused> {
        self.check_generations(&model, wanted.as_ref())?;
        match wanted {
            Some(wanted) => _ = self.generations.insert(model, wanted),
            None => _ = self.generations.remove(&model),
        }
        Ok(())
    }

    /// Whether they can be wanted of a model.
    ///
    /// # Errors
    /// [`Refused`] where they can't, or there are others enough.
    pub fn check_generations(
        &self,
        model: &str,
        wanted: Option<&ModelGenerations>,
    ) -> Result<(), Refused> {
        claims::is_short("the model's name", model)?;
        let is_full = self.generations.len() >= MODELS_MAX && !self.generations.contains_key(model);
        match wanted {
            Some(_) if is_full => impossible(format!(
                "generations of {MODELS_MAX} models are told of already: leave some to their dataplanes"
            )),
            Some(wanted) => wanted.check(),
            None => Ok(()),
        }
    }

    /// Dataplanes of a model that are not silent.
    fn heard(&self, now_ns: u64, model: &str) -> BTreeMap<&str, &Dataplane> {
        let serving = self.dataplanes.iter();
        let serving = serving.filter(|(_, of)| of.report.model == model && !of.is_silent(now_ns));
        serving.map(|(name, of)| (&**name, of)).collect()
    }

    /// Dataplanes of a model that are silent, by name, and those that were there before this planner began and have not reported since.
    fn unheard(&self, now_ns: u64, model: &str) -> Vec<Unheard<'_>> {
        let silent = self.dataplanes.iter();
        let silent = silent.filter(|(_, of)| of.report.model == model && of.is_silent(now_ns));
        let silent = silent.map(|(name, of)| (name, of.heard_ns, of.report.generations.first()));
        let remembered = self.remembered.iter();
        let remembered = remembered.filter(|(_, of)| of.model.as_deref() == Some(model));
        let remembered = remembered.map(|(name, of)| (name, of.since_ns, of.newest.as_ref()));
        let all = silent.chain(remembered);
        let mut unheard: Vec<Unheard> = all
            .map(|(name, heard_ns, served)| Unheard {
                name,
                for_s: now_ns.saturating_sub(heard_ns) / TURN_NS,
                served: served.copied(),
            })
            .collect();
        unheard.sort_unstable_by_key(|of| of.name);
        unheard
    }

    /// Whether a dataplane is left out, since it was not heard of.
    pub fn leaves_out(&self, dataplane: &str) -> bool {
        let mut wanted = self.generations.values();
        wanted.any(|wanted| wanted.without.iter().any(|name| name == dataplane))
    }

    /// It is heard of again.
    pub(super) fn leave_out_no_more(&mut self, dataplane: &str) {
        for wanted in self.generations.values_mut() {
            wanted.without.retain(|name| name != dataplane);
        }
    }

    /// What is wanted of each model.
    pub fn wanted(&self) -> impl Iterator<Item = (&str, &ModelGenerations)> {
        let wanted = self.generations.iter();
        wanted.map(|(model, wanted)| (&**model, wanted))
    }

    /// All models that are served or of which something is wanted.
    pub fn models(&self, now_ns: u64) -> Vec<ModelView> {
        let served = self.dataplanes.values().map(|of| &of.report.model);
        let mut models: Vec<&String> = served.chain(self.generations.keys()).collect();
        models.sort_unstable();
        models.dedup();
        let views = models.into_iter();
        views.map(|model| self.model(now_ns, model)).collect()
    }

    /// A model, whether it is known or not.
    pub fn model(&self, now_ns: u64, model: &str) -> ModelView {
        let wanted = self.generations.get(model);
        let heard = self.heard(now_ns, model);
        let missing = wanted.map_or(Vec::new(), |wanted| {
            let not_done = heard.iter().filter(|(_, of)| !wanted.is_done(of));
            let unheard = self.unheard(now_ns, model);
            let unheard = unheard.iter().map(|of| of.name);
            let missing = not_done.map(|(name, _)| *name).chain(unheard);
            missing.map(String::from).collect()
        });
        let of_model = self.dataplanes.iter();
        let of_model = of_model.filter(|(_, of)| of.report.model == *model);
        ModelView {
            model: model.into(),
            wanted: wanted.cloned(),
            settled: wanted.is_none() || !heard.is_empty() && missing.is_empty(),
            missing,
            dataplanes: of_model
                .map(|(name, of)| (name, of, self.has_answered(of)))
                .map(|(name, of, answered)| HoldingView {
                    dataplane: name.clone(),
                    heard_s_ago: now_ns.saturating_sub(of.heard_ns) / TURN_NS,
                    held: of.report.generations.clone(),
                    change: of.report.generations_change.clone(),
                    deltas: of.report.deltas.clone(),
                    delta: of.report.deltas_change.clone(),
                    // The planner knows nothing of what is kept.
                    diverged: Vec::new(),
                    answered,
                    refused: match answered {
                        true => refusals(of).map(String::from).collect(),
                        false => Vec::new(),
                    },
                })
                .collect(),
        }
    }

    /// Whether each dataplane holds a generation.
    fn is_there(
        &self,
        number: u64,
        dataplanes: &BTreeMap<&str, &Dataplane>,
    ) -> Result<(), Refused> {
        if dataplanes.is_empty() {
            return impossible(
                "no dataplane that serves it was heard of in the last seconds: try again when all of them are"
                    .into(),
            );
        }
        let lacks = |of: &Dataplane| !of.report.generations.contains(&number);
        let mut lacking = dataplanes.iter().filter(|(_, of)| lacks(of));
        let Some((name, of)) = lacking.next() else {
            return Ok(());
        };
        let more = match lacking.count() {
            0 => String::new(),
            more => format!(", nor do {more} others"),
        };
        // What it tells of another generation, or told of an earlier wish, is not why.
        let own = format!("generation {number}:");
        let refused = refusals(of).find(|why| why.starts_with(&own));
        let change = of.report.generations_change.as_deref();
        let why = refused.or(change.filter(|change| change.contains(&own)));
        let why = match why.filter(|_| self.has_answered(of)) {
            Some(why) => format!(" ({why})"),
            None => String::new(),
        };
        impossible(format!(
            "`{name}` does not hold generation {number} yet{why}{more}: try again when all of them do"
        ))
    }

    /// Whether a dataplane has told something since it was told what is wanted now: what it refused before was of something else.
    fn has_answered(&self, of: &Dataplane) -> bool {
        let wanted = self.generations.get(&of.report.model);
        let wanted = wanted.map(ModelGenerations::policy);
        let told = of.policy.as_ref();
        let applied = of.report.policy.as_ref();
        told.is_some_and(|told| told.generations == wanted)
            && applied.is_some_and(|applied| {
                applied.control == self.control && applied.order >= of.generations_order
            })
    }
}

/// What of generations a dataplane could not do.
fn refusals(dataplane: &Dataplane) -> impl Iterator<Item = &str> {
    let refused = dataplane.report.policy.iter().flat_map(|of| &of.refused);
    let sentences = refused.map(String::as_str);
    sentences.filter(|sentence| sentence.starts_with("generation "))
}

/// What dataplanes serve of which nothing is wanted yet, and one that is about to be, where all of them hold it.
fn served(
    model: &str,
    dataplanes: &BTreeMap<&str, &Dataplane>,
    activated: Option<u64>,
) -> Result<ModelGenerations, Refused> {
    let mut served = dataplanes.iter();
    let Some((first, of)) = served.next() else {
        return impossible(format!(
            "no dataplane that serves model `{model}` was heard of in the last seconds"
        ));
    };
    let silent = dataplanes
        .iter()
        .find(|(_, of)| of.report.generations.is_empty());
    if let Some((name, _)) = silent {
        return impossible(format!(
            "dataplane `{name}` tells of no generations: it can't change them"
        ));
    }
    let newest = of.report.generations[0];
    let other = served.find(|(_, of)| of.report.generations[0] != newest);
    if let Some((other, of)) = other {
        return impossible(format!(
            "dataplanes serve different generations of `{model}`: `{first}` {newest}, `{other}` {}: bring them to one first, each by itself",
            of.report.generations[0]
        ));
    }
    // What is held beside it is not wanted, unless it is to be served.
    let other = activated.filter(|&number| {
        let mut held = dataplanes.values().map(|of| &of.report.generations);
        number != newest && held.all(|held| held.contains(&number))
    });
    Ok(ModelGenerations {
        held: [newest].into_iter().chain(other).collect(),
        newest,
        before: None,
        without: Vec::new(),
        tries: 0,
    })
}

/// Whether nothing is unheard of that may serve a generation which is to be served no more.
fn are_heard(unheard: &[Unheard], served: Option<u64>) -> Result<(), Refused> {
    let Some(Unheard { name, for_s, .. }) = unheard.first() else {
        return Ok(());
    };
    let served = served.map_or("another generation".into(), |number| {
        format!("generation {number}")
    });
    let more = match unheard.len() - 1 {
        0 => String::new(),
        more => format!(", nor were {more} others"),
    };
    impossible(format!(
        "`{name}` was not heard of for {for_s} s and may serve {served} still{more}: wait until it is, or go on without it (`without`, or --without {name})"
    ))
}
