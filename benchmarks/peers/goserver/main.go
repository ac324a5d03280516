// A bare peer for the serving benchmark: rows in bbolt, given by key over net/http. No filters, no auth, no events.
//
//	goserver fill  FILE          reads "key<TAB>row" lines
//	goserver serve FILE ADDRESS  answers GET /{endpoint}/{key}; prints the address it listens on
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"strconv"

	"go.etcd.io/bbolt"
)

var bucket = []byte("rows")

const rowsPerTransaction = 50_000

func main() {
	log.SetFlags(0)
	arguments := os.Args[1:]
	switch {
	case len(arguments) == 2 && arguments[0] == "fill":
		fill(open(arguments[1], false))
	case len(arguments) == 3 && arguments[0] == "serve":
		serve(open(arguments[1], true), arguments[2])
	default:
		log.Fatal("usage: goserver fill FILE | goserver serve FILE ADDRESS")
	}
}

func open(file string, readOnly bool) *bbolt.DB {
	db, err := bbolt.Open(file, 0o600, &bbolt.Options{ReadOnly: readOnly, NoSync: !readOnly})
	check(err)
	return db
}

func key(number uint64) []byte {
	return binary.BigEndian.AppendUint64(make([]byte, 0, 8), number)
}

func fill(db *bbolt.DB) {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(make([]byte, 1<<20), 1<<20)
	for more := true; more; {
		check(db.Update(func(tx *bbolt.Tx) error {
			rows, err := tx.CreateBucketIfNotExists(bucket)
			check(err)
			rows.FillPercent = 0.9
			for n := 0; n < rowsPerTransaction; n++ {
				if more = lines.Scan(); !more {
					return lines.Err()
				}
				head, row, _ := bytes.Cut(lines.Bytes(), []byte("\t"))
				number, err := strconv.ParseUint(string(head), 10, 64)
				check(err)
				check(rows.Put(key(number), bytes.Clone(row)))
			}
			return nil
		}))
	}
	check(db.Close())
}

func serve(db *bbolt.DB, address string) {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{endpoint}/{key}", func(w http.ResponseWriter, r *http.Request) {
		number, err := strconv.ParseUint(r.PathValue("key"), 10, 64)
		if err != nil {
			http.Error(w, "not a key", http.StatusBadRequest)
			return
		}
		// the row is valid only within the transaction, so it is written there
		err = db.View(func(tx *bbolt.Tx) error {
			row := tx.Bucket(bucket).Get(key(number))
			if row == nil {
				http.NotFound(w, r)
				return nil
			}
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", strconv.Itoa(len(row)))
			_, err := w.Write(row)
			return err
		})
		if err != nil {
			log.Print(err)
		}
	})
	listener, err := net.Listen("tcp", address)
	check(err)
	fmt.Println(listener.Addr())
	check(http.Serve(listener, mux))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
