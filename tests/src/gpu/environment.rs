//! What the GPU says of itself, recorded.

use anyhow::{Context, Result, ensure};
use rowmill_client::cuda::{self, Attribute, DeviceMemory};
use serde_json::{Value, json};

use super::place::Place;

/// What is recorded; 75 is the compute capability.
const RECORDED: [i32; 10] = [75, 92, 98, 99, 110, 116, 117, 118, 122, 124];

pub(super) fn describe(_place: &Place) -> Result<(String, Value)> {
    let device = super::device().map_err(anyhow::Error::msg)?;
    let driver = device.driver();
    let (name, version) = (device.name()?, driver.version()?);
    let attributes: serde_json::Map<String, Value> = RECORDED
        .into_iter()
        .map(|number| {
            let value = device.attribute(Attribute(number)).ok();
            (number.to_string(), value.into())
        })
        .collect();
    let line = format!(
        "{name}, CUDA {version}, {}; attributes {}",
        driver.library(),
        json!(attributes)
    );
    let missing = driver.missing();
    Ok((
        line,
        json!({"name": name, "cuda": version, "attributes": attributes, "missing": missing}),
    ))
}

/// Whether memory can be exported as a dma-buf, which is recorded and no failure where it can't.
pub(super) fn export(_place: &Place) -> Result<(String, Value)> {
    let device = super::device().map_err(anyhow::Error::msg)?;
    let context = cuda::Context::primary(device)?;
    let memory = DeviceMemory::new(&context, 2 << 20).context("2 MiB of the GPU's memory")?;
    let page = rustix::param::page_size() as u64;
    let exported = context.enter()?.export(&memory, page);
    let (line, code) = match exported {
        Ok(Some(exported)) => {
            ensure!(
                exported.offset < page,
                "it begins {} bytes in",
                exported.offset
            );
            (format!("exported, at byte {}", exported.offset), json!(0))
        }
        Ok(None) => (
            "the GPU exports none (attribute 124 is 0)".into(),
            Value::Null,
        ),
        Err(error) => (error.to_string(), json!(error.code())),
    };
    Ok((line, json!({"code": code})))
}
