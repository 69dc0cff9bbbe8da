//! What operators ask for.

use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use rowmill_admission::{DataplaneView, RowView, TableView};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::bodies::Json;
use super::refusal::{Refusal, Told};
use super::{Deltas, Warnings};
use crate::planning::Planning;

/// The control plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Status {
    /// `rowmill-control`.
    pub program: String,
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// What its policies are signed with: drawn once with its state.
    pub control: String,
    /// Starts with its state.
    pub epoch: u64,
    /// Dataplanes that are known, and tables that they cache.
    pub dataplanes: usize,
    /// See above.
    pub tables: usize,
    /// Other control planes that dataplanes follow, each in a sentence.
    pub others: Vec<String>,
    /// What is open to whom, where that is more than most would want, and damaged states that were set aside, as long as they lie there,
    /// each in a sentence.
    pub warnings: Vec<String>,
    /// Where deltas come from by themselves, and how that stands; deltas that are damaged; and dataplanes whose deltas are others than those that
    /// are kept: each in a sentence.
    pub deltas: Vec<String>,
}

/// How the control plane is.
#[utoipa::path(get, path = "/v1/status", responses((status = 200, body = Status), (status = 503, body = Told, description = "There is too much to do")))]
pub(super) async fn status(
    State(planning): State<Planning>,
    Extension(warnings): Extension<Warnings>,
    Extension(Deltas(log)): Extension<Deltas>,
) -> Result<Json<Status>, Refusal> {
    let control = planning.control.clone();
    let look = move |planner: &rowmill_admission::Planner, now_ns: u64| {
        let others = planner.strays(&control);
        let others =
            others.map(|(name, other)| format!("dataplane `{name}` follows control plane {other}"));
        Status {
            program: "rowmill-control".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            uptime_s: now_ns / rowmill_admission::TURN_NS,
            epoch: planner.epoch(),
            others: others.collect(),
            warnings: warnings.told(),
            deltas: log.map_or(Vec::new(), |log| log.told(|name| planner.knows(name))),
            dataplanes: planner.names().count(),
            tables: planner.tables_known(),
            control,
        }
    };
    Ok(Json(planning.look(look).await?))
}

/// Dataplanes, what they cache, and what becomes of it.
#[utoipa::path(get, path = "/v1/dataplanes", responses((status = 200, body = Vec<DataplaneView>), (status = 503, body = Told, description = "There is too much to do")))]
pub(super) async fn dataplanes(
    State(planning): State<Planning>,
) -> Result<Json<Vec<DataplaneView>>, Refusal> {
    Ok(Json(
        planning
            .look(|planner, now_ns| planner.dataplanes(now_ns))
            .await?,
    ))
}

/// Tables that dataplanes cache, with their hits by size and their shares.
#[utoipa::path(get, path = "/v1/tables", responses((status = 200, body = Vec<TableView>), (status = 503, body = Told, description = "There is too much to do")))]
pub(super) async fn tables(
    State(planning): State<Planning>,
) -> Result<Json<Vec<TableView>>, Refusal> {
    Ok(Json(
        planning
            .look(|planner, now_ns| planner.tables(now_ns))
            .await?,
    ))
}

/// Why a table has its share.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Explained {
    /// The table.
    pub table: TableView,
    /// The dataplanes that cache it, with the shares of all tables there: what the next MiB gains in each of them is what decides.
    pub dataplanes: Vec<DataplaneView>,
}

fn no_table(model: &str, table: &str) -> Refusal {
    Refusal::absent(format!(
        "no dataplane caches a table `{table}` of a model `{model}`: `rowmill tables` (GET /v1/tables) says which there are"
    ))
}

/// Why a table has its share: its hits by size, what the next MiB gains there and beside, its last changes.
#[utoipa::path(
    get, path = "/v1/tables/{model}/{table}",
    params(("model" = String, Path, description = "The table's model"), ("table" = String, Path, description = "Its name")),
    responses((status = 200, body = Explained), (status = 404, body = Told, description = "Nobody caches it"), (status = 503, body = Told, description = "There is too much to do"))
)]
pub(super) async fn table(
    State(planning): State<Planning>,
    Path((model, table)): Path<(String, String)>,
) -> Result<Json<Explained>, Refusal> {
    let (of, name) = (model.clone(), table.clone());
    let look = move |planner: &rowmill_admission::Planner, now_ns: u64| {
        let view = planner.table(now_ns, &of, &name)?;
        let mut dataplanes = planner.dataplanes(now_ns);
        dataplanes.retain(|dataplane| {
            view.shares
                .iter()
                .any(|share| share.dataplane == dataplane.name)
        });
        Some(Explained {
            table: view,
            dataplanes,
        })
    };
    let explained = planning.look(look).await?;
    explained.map(Json).ok_or_else(|| no_table(&model, &table))
}

/// Why a row is in a cache, or is not.
#[utoipa::path(
    get, path = "/v1/tables/{model}/{table}/rows/{row}",
    params(
        ("model" = String, Path, description = "The table's model"), ("table" = String, Path, description = "Its name"),
        ("row" = u32, Path, description = "The row's number"),
    ),
    responses(
        (status = 200, body = RowView), (status = 400, body = Told, description = "It is no number, or not one of the table's rows"),
        (status = 404, body = Told, description = "Nobody caches the table"),
        (status = 503, body = Told, description = "There is too much to do"),
    )
)]
pub(super) async fn row(
    State(planning): State<Planning>,
    Path((model, table, row)): Path<(String, String, String)>,
) -> Result<Json<RowView>, Refusal> {
    let number: u32 = row.parse().map_err(|_| {
        Refusal::new(
            StatusCode::BAD_REQUEST,
            format!("`{row}` is no number of a row: write one from 0 to 4294967295"),
        )
    })?;
    let (of, name) = (model.clone(), table.clone());
    let look = move |planner: &rowmill_admission::Planner, _| {
        let rows = planner.rows(&of, &name)?;
        Some((rows, planner.row(&of, &name, number)?))
    };
    let found = planning.look(look).await?;
    let (rows, view) = found.ok_or_else(|| no_table(&model, &table))?;
    if u64::from(number) >= rows {
        return Err(Refusal::new(
            StatusCode::BAD_REQUEST,
            format!(
                "table `{table}` has {rows} rows, from 0 to {}: there is no row {number}",
                rows.saturating_sub(1)
            ),
        ));
    }
    Ok(Json(view))
}
