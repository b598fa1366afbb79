"""Names of packages that libraries look for, most of them seldom installed."""

OPTIONAL = (
    "pint sparse cupy gmpy2 triton lz4 dask cftime numba bottleneck h5netcdf pydap iris flox jax "
    "tensorflow opt_einsum fsspec obstore s3fs crc32c zfpy pcodec ipywidgets IPython pygments "
    "numbagg numexpr sitecustomize usercustomize torch numpy yaml typer json r2no_plugin"
)
