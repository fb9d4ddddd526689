@echo off
rem Install vitkit from this folder on Windows, without a network: install.bat [FOLDER]
setlocal
set HERE=%~dp0
for %%P in ("py -3.13" "py -3.12" "py -3.11" "python" "python3") do (
    %%~P "%HERE%install.py" --check >nul 2>nul
    if not errorlevel 1 (
        %%~P "%HERE%install.py" %*
        goto end
    )
)
python "%HERE%install.py" --check
if errorlevel 1 echo error: no Python that this folder has packages for was found: install it from python.org first
:end
pause
