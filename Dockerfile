# Three images from one file; none holds torch or a compiler.
#   docker build -t ml-decoder-serve .                     CPU (the last stage)
#   docker build -t ml-decoder-serve:openvino --target openvino .
#                                                          Intel's CPUs, with OpenVINO's kernels
#   docker build -t ml-decoder-serve:gpu --target gpu .    CUDA 13: the host needs the driver, 580
#                                                          or later, and the NVIDIA container
#                                                          toolkit
# Images are pinned by digest, actions by commit; .github/dependabot.yml proposes newer ones.
FROM python:3.11.16-slim-bookworm@sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b AS base
# Disables ONNX Runtime's telemetry.
ENV ORT_DISABLE_TELEMETRY=1 \
    PATH=/opt/venv/bin:$PATH \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PYTHONUNBUFFERED=1

# The lists are complete, with a hash for each file: the dependencies become a layer that no change
# of the code rebuilds, and setuptools of the list builds the code. The base's pip installs, so that
# the image has none.
FROM base AS build-cpu
WORKDIR /src
RUN python -m venv --without-pip /opt/venv
COPY constraints/serve-cpu.txt constraints/
# Removes files that the service never loads: the hub client of `tokenizers` and its dependencies,
# numpy's tests, ONNX Runtime's scripts for other models, and its C library, which the Python module
# contains. Also removes the extras `bulk` and `get`; `fast`, 155 MB for a third of the decoding
# time; and `heif`, whose wheel has an encoder under the GPL, which an image would pass on.
RUN pip --python /opt/venv install --require-hashes --no-deps --requirement constraints/serve-cpu.txt \
    && pip --python /opt/venv uninstall --yes \
        filelock fsspec hf-xet httpx2 huggingface-hub lxml ml-dtypes onnx opencv-python-headless \
        pillow-heif pyarrow pyyaml simplejpeg tqdm \
    && find /opt/venv/lib/python3.11/site-packages/numpy -name tests -type d -prune \
        -exec rm -r {} + \
    && runtime=/opt/venv/lib/python3.11/site-packages/onnxruntime \
    && rm -r "$runtime/quantization" "$runtime/tools" "$runtime/transformers" \
    && rm -f "$runtime"/capi/libonnxruntime.so.*
COPY pyproject.toml README.md LICENSE ./
COPY service/ service/
RUN pip --python /opt/venv install --no-deps --no-build-isolation . \
    && pip --python /opt/venv uninstall --yes setuptools

FROM base AS build-openvino
WORKDIR /src
RUN python -m venv --without-pip /opt/venv
COPY constraints/serve-openvino.txt constraints/
# As for the CPU, but with `fast`: users of OpenVINO want speed.
RUN pip --python /opt/venv install --require-hashes --no-deps --requirement constraints/serve-openvino.txt \
    && pip --python /opt/venv uninstall --yes \
        filelock fsspec hf-xet httpx2 huggingface-hub lxml ml-dtypes onnx pillow-heif pyarrow \
        pyyaml tqdm \
    && find /opt/venv/lib/python3.11/site-packages/numpy -name tests -type d -prune \
        -exec rm -r {} + \
    && runtime=/opt/venv/lib/python3.11/site-packages/onnxruntime \
    && rm -r "$runtime/quantization" "$runtime/tools" "$runtime/transformers" \
    && rm -f "$runtime"/capi/libonnxruntime.so.*
COPY pyproject.toml README.md LICENSE ./
COPY service/ service/
RUN pip --python /opt/venv install --no-deps --no-build-isolation . \
    && pip --python /opt/venv uninstall --yes setuptools

FROM base AS build-gpu
WORKDIR /src
RUN python -m venv --without-pip /opt/venv
COPY constraints/serve-gpu.txt constraints/
RUN pip --python /opt/venv install --require-hashes --no-deps --requirement constraints/serve-gpu.txt \
    && pip --python /opt/venv uninstall --yes \
        filelock fsspec hf-xet httpx2 huggingface-hub lxml ml-dtypes onnx pillow-heif pyarrow \
        pyyaml tqdm
COPY pyproject.toml README.md LICENSE ./
COPY service/ service/
RUN pip --python /opt/venv install --no-deps --no-build-isolation . \
    && pip --python /opt/venv uninstall --yes setuptools

FROM base AS runtime
RUN groupadd --gid 10001 ml-decoder \
    && useradd --uid 10001 --gid 10001 --no-create-home --shell /usr/sbin/nologin ml-decoder \
    && install --directory --owner=ml-decoder --group=root --mode=775 /var/lib/ml-decoder
WORKDIR /app
# OpenShift runs images as any user of the group root. Whatever the umask of the checkout: they and
# the user above read the bundles.
COPY --chmod=755 bundles/ bundles/
ENV HOME=/var/lib/ml-decoder \
    ML_DECODER_BUNDLE=/app/bundles/ml-decoder-lite0 \
    ML_DECODER_HOST=0.0.0.0 \
    ML_DECODER_LABEL_STORE=/var/lib/ml-decoder/labels.db \
    ML_DECODER_PORT=8000
USER 10001:10001
EXPOSE 8000
# Not urllib: it would send the request to a proxy that the environment names.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; server = http.client.HTTPConnection('127.0.0.1', int(os.environ['ML_DECODER_PORT']), timeout=4); server.request('GET', '/readyz'); sys.exit(server.getresponse().status != 200)"]
CMD ["ml-decoder", "serve"]

FROM runtime AS openvino
COPY --from=build-openvino /opt/venv /opt/venv
ENV ML_DECODER_DEVICE=openvino

FROM runtime AS gpu
COPY --from=build-gpu /opt/venv /opt/venv
ENV ML_DECODER_DEVICE=cuda \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    NVIDIA_VISIBLE_DEVICES=all

FROM runtime AS cpu
COPY --from=build-cpu /opt/venv /opt/venv
ENV ML_DECODER_DEVICE=cpu
