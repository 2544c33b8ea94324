"""`python tools/export_model.py --model-file M.py --class-name C --out M.mlir`."""

import sys

if __name__ == "__main__":
    # Python puts this script's folder first, where inspect.py would hide its own.
    del sys.path[0]
    from pcp.tools.commands.export import main

    sys.exit(main())
